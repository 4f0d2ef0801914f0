//! What would allow a request that is denied.

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;

use peername_observe::shell::quote;

/// The option that would allow it, displayed as on a command line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remedy {
    /// A rule of `--allow`.
    Allow(String),
    /// An address of `--allow-destination`.
    AllowDestination(SocketAddr),
    /// Both addresses of this host's loopback, at this port.
    AllowLoopback(u16),
    /// A destination of a jail's `--allow-tcp`.
    AllowTcp(String),
    /// A port that a jail opens as TLS and HTTP.
    Port(u16),
}

impl Display for Remedy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow(rule) => write!(f, "--allow {}", quote(rule)),
            Self::AllowDestination(addr) => {
                write!(f, "--allow-destination {}", quote(&addr.to_string()))
            }
            Self::AllowLoopback(port) => write!(
                f,
                "--allow-destination 127.0.0.1:{port} --allow-destination '[::1]:{port}'"
            ),
            Self::AllowTcp(to) => write!(f, "--allow-tcp {}", quote(to)),
            Self::Port(port) => write!(f, "--port {port}"),
        }
    }
}
