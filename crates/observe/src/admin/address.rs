//! Where the admin endpoint listens: an address, or a Unix socket.

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of the admin endpoint, written as `127.0.0.1:9100` or `unix:/run/peername/admin.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddr {
    /// TCP. Anything that reaches the address may read the metrics.
    Tcp(SocketAddr),
    /// A Unix socket, for the owner and the group of the process (mode 0660).
    Unix(PathBuf),
}

/// Why a text is not the address of an admin endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseAdminAddrError {
    /// The text is neither form.
    #[error(
        "use an address and a port, such as 127.0.0.1:9100, or unix:PATH with an absolute path"
    )]
    Form,
    /// The text is a port.
    #[error("the address is missing, as in 127.0.0.1:{0}")]
    NoAddress(u16),
    /// The text is an address without a port.
    #[error("the port is missing, as in {0}")]
    NoPort(SocketAddr),
    /// The path does not fit into the address of a socket.
    #[error("use a path of at most {0} bytes")]
    TooLong(usize),
}

impl FromStr for AdminAddr {
    type Err = ParseAdminAddrError;

    fn from_str(text: &str) -> Result<Self, ParseAdminAddrError> {
        match text.strip_prefix("unix:").map(PathBuf::from) {
            Some(path) if path.as_os_str().len() > MAX_PATH => {
                Err(ParseAdminAddrError::TooLong(MAX_PATH))
            }
            Some(path) if path.is_absolute() => Ok(Self::Unix(path)),
            Some(_) => Err(ParseAdminAddrError::Form),
            None => text.parse().map(Self::Tcp).map_err(|_| missing_part(text)),
        }
    }
}

impl AdminAddr {
    /// Parses the address of an endpoint that this process will open.
    ///
    /// # Errors
    ///
    /// As [`AdminAddr::from_str`]; and the path is too long to be bound.
    pub fn parse_own(text: &str) -> Result<Self, ParseAdminAddrError> {
        match text.strip_prefix("unix:") {
            Some(path) if path.len() > MAX_BOUND_PATH => {
                Err(ParseAdminAddrError::TooLong(MAX_BOUND_PATH))
            }
            _ => text.parse(),
        }
    }
}

fn missing_part(text: &str) -> ParseAdminAddrError {
    let port = text.strip_prefix(':').unwrap_or(text).parse();
    match (port, text.parse()) {
        (Ok(port), _) => ParseAdminAddrError::NoAddress(port),
        (_, Ok(ip)) => ParseAdminAddrError::NoPort(SocketAddr::new(ip, EXAMPLE_PORT)),
        _ => ParseAdminAddrError::Form,
    }
}

impl Display for AdminAddr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

const EXAMPLE_PORT: u16 = 9100;
/// Bytes of the path of a socket (unix(7)).
const MAX_PATH: usize = 107;
/// Bytes of a path that leave room for a dot and a process id: the socket is first bound to that longer path.
const MAX_BOUND_PATH: usize = 96;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_absolute_paths_are_parsed_and_printed_alike() {
        for text in ["127.0.0.1:9100", "[::1]:9100", "unix:/run/admin.sock"] {
            let addr: AdminAddr = text.parse().expect(text);
            assert_eq!(addr.to_string(), text);
        }
        for text in ["", "localhost:9100", "unix:admin.sock", "unix:"] {
            assert_eq!(
                text.parse::<AdminAddr>(),
                Err(ParseAdminAddrError::Form),
                "{text}"
            );
        }
    }
}
