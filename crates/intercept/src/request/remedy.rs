//! What would allow a request that is denied.

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;

/// The option that would allow it, displayed as on a command line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remedy {
    /// A rule of `--allow`.
    Allow(String),
    /// An address of `--allow-destination`.
    AllowDestination(SocketAddr),
    /// A destination of a jail's `--allow-tcp`.
    AllowTcp(String),
    /// A port that a jail opens as TLS and HTTP.
    Port(u16),
}

impl Display for Remedy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            // A rule with a method is two words.
            Self::Allow(rule) if rule.contains(' ') => write!(f, "--allow '{rule}'"),
            Self::Allow(rule) => write!(f, "--allow {rule}"),
            Self::AllowDestination(addr) => write!(f, "--allow-destination {addr}"),
            Self::AllowTcp(to) => write!(f, "--allow-tcp {to}"),
            Self::Port(port) => write!(f, "--port {port}"),
        }
    }
}
