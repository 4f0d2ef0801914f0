//! A backend: its address and its transport protocol.

use std::fmt::{self, Display, Formatter};
use std::net::{AddrParseError, SocketAddr};
use std::str::FromStr;

use peername_sys::Transport;

/// A backend: written as `10.0.0.5:443` and, for UDP, `10.0.0.5:53/udp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend {
    /// The address.
    pub address: SocketAddr,
    /// The protocol.
    pub transport: Transport,
}

impl Backend {
    /// A backend at this address.
    pub fn new(address: SocketAddr, transport: Transport) -> Self {
        Self { address, transport }
    }
}

/// A TCP backend.
impl From<SocketAddr> for Backend {
    fn from(address: SocketAddr) -> Self {
        Self::new(address, Transport::Tcp)
    }
}

impl Display for Backend {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.transport {
            Transport::Tcp => write!(f, "{}", self.address),
            Transport::Udp => write!(f, "{}{UDP}", self.address),
        }
    }
}

impl FromStr for Backend {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        match text.strip_suffix(UDP) {
            Some(address) => Ok(Self {
                address: address.parse()?,
                transport: Transport::Udp,
            }),
            None => Ok(text.parse::<SocketAddr>()?.into()),
        }
    }
}

const UDP: &str = "/udp";
