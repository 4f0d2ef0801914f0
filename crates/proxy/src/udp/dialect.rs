//! UDP dialects: which datagrams have a header, and in which format.
//!
//! A receiver can't tell dialects apart, so the dialect is configured. This module has all that differs between dialects: the
//! name, the steering of datagrams to workers, the headers of requests and replies. [`header`] parses a header; [`reader`]
//! finds the header of each datagram, or that of its flow. To add a dialect, add a variant and follow the compiler;
//! docs/udp.md has a table of the dialects.

pub(super) mod header;
pub(super) mod reader;
mod session_headers;

use std::fmt::{self, Display, Formatter};
use std::net::{SocketAddr, UdpSocket};
use std::str::FromStr;

use peername_proto::{Spp, Transport, WriteError};
use peername_sys::SyscallError;
use peername_sys::udp::steering;
pub(crate) use session_headers::SessionHeaders;

use crate::forward::HeaderTemplate;

/// Which datagrams have a header, and in which format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// PROXY v2 on every datagram, as the specification has it.
    #[default]
    Each,
    /// PROXY v2, or v1 as nginx sends it, on the first datagram of a flow; afterwards the balancer's address and port identify
    /// the client. The forwarder sends v2.
    First,
    /// Simple Proxy Protocol on every datagram, both ways.
    Spp,
}

impl Dialect {
    /// All dialects, in the order of the documentation.
    pub const ALL: [Self; 3] = [Self::Each, Self::First, Self::Spp];

    /// The names of [`Dialect::ALL`], as [`Dialect::from_str`] takes them.
    pub const NAMES: [&'static str; Self::ALL.len()] = {
        let [a, b, c] = Self::ALL;
        [a.name(), b.name(), c.name()]
    };

    /// The name on the command line and in the configuration file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Each => "each",
            Self::First => "first",
            Self::Spp => "spp",
        }
    }

    /// One line of help.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Each => "PROXY v2 on every datagram",
            Self::First => {
                "PROXY v2 on the first datagram of a flow (`proxy` accepts v1, too: nginx)"
            }
            Self::Spp => "Simple Proxy Protocol on every datagram, both ways",
        }
    }

    /// Whether every datagram names its client. Only then can datagrams be steered among workers by client, and sessions be
    /// offloaded to the kernel: otherwise each header changes the client of the datagrams after it, and the kernel's table
    /// could not be updated in time.
    pub(super) fn has_header_on_each(self) -> bool {
        match self {
            Self::Each | Self::Spp => true,
            Self::First => false,
        }
    }

    /// Steers datagrams by the client in their header among the workers' sockets that share the address of `socket`. Has no
    /// effect where datagrams don't name their client.
    ///
    /// # Errors
    ///
    /// setsockopt(SO_ATTACH_REUSEPORT_CBPF), since Linux 4.6.
    pub(super) fn steer(self, socket: &UdpSocket, workers: u32) -> Result<(), SyscallError> {
        match self {
            Self::Each => steering::steer_by_proxy_v2(socket, workers),
            Self::Spp => steering::steer_by_spp(socket, workers),
            Self::First => Ok(()),
        }
    }

    /// The headers of a session with requests in this dialect, from `client` to `destination`.
    pub(super) fn write_headers(
        self,
        header_template: &HeaderTemplate,
        client: SocketAddr,
        destination: SocketAddr,
    ) -> Result<SessionHeaders, WriteError> {
        let request = match self {
            Self::Each | Self::First => {
                header_template.header(Transport::Datagram, client, destination)?
            }
            Self::Spp => {
                let proxy = destination;
                Spp { client, proxy }.to_bytes().to_vec()
            }
        };
        Ok(SessionHeaders {
            request: request.into(),
            first_only: self == Self::First,
            reply: Box::default(),
            expected_on_replies: self == Self::Spp,
        })
    }
}

impl Display for Dialect {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for a name that no dialect has.
#[derive(Debug, thiserror::Error)]
#[error("unknown dialect; known are {}", Dialect::NAMES.join(", "))]
pub struct UnknownDialect;

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(name: &str) -> Result<Self, UnknownDialect> {
        Self::ALL
            .into_iter()
            .find(|dialect| dialect.name() == name)
            .ok_or(UnknownDialect)
    }
}
