//! The option that would allow a denied request.

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;

use peername_observe::shell::command_line;

use crate::host::LOCALHOST;

/// The option that would allow a denied request, displayed as on a command line.
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

impl Remedy {
    /// Returns the rule if one may be suggested, else the other option: without rules a first one would deny everything else,
    /// and `--learn` accepts none; beside rules with methods or paths it would allow what they do not.
    pub(crate) fn rule_or(may_suggest_rule: bool, rule: String, other: Self) -> Self {
        if may_suggest_rule {
            Self::Allow(rule)
        } else {
            other
        }
    }

    /// The name of the option, which is also its key in a configuration file.
    pub fn option(&self) -> &'static str {
        match self {
            Self::Allow(_) => "allow",
            Self::AllowDestination(_) | Self::AllowLoopback(_) => "allow-destination",
            Self::AllowTcp(_) => "allow-tcp",
            Self::Port(_) => "port",
        }
    }

    /// What the option allows beyond the request; empty if that is what one expects.
    pub fn caution(&self) -> &'static str {
        match self {
            Self::Allow(rule) if rule.find('/').is_some_and(|at| at + 1 == rule.len()) => {
                "a rule for the path / allows every path"
            }
            _ => "",
        }
    }

    /// The values to give to the option, or to add to the list of its key.
    pub fn values(&self) -> Vec<String> {
        match self {
            Self::Allow(value) | Self::AllowTcp(value) => vec![value.clone()],
            Self::AllowDestination(addr) => vec![addr.to_string()],
            Self::AllowLoopback(port) => LOCALHOST
                .map(|ip| SocketAddr::new(ip, *port).to_string())
                .to_vec(),
            Self::Port(port) => vec![port.to_string()],
        }
    }
}

impl Display for Remedy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let option = format!("--{}", self.option());
        let values = self.values();
        let words = values.iter().flat_map(|value| [&option, value]);
        f.write_str(&command_line(words))
    }
}
