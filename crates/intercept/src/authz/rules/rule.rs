//! One rule of an access list, and its syntax.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;

use peername_proto::meanings;

use super::path::{PathPrefix, RequestPath};
use crate::host::{Host, HostPort, ParseHostError};
use crate::policy::host_port_path::Parts;
use crate::policy::passthrough::{HostPattern, ParseHostPatternError};

/// A rule: `allow HOST[:PORT][/PATH]` or `deny HOST[:PORT][/PATH]`.
///
/// `HOST` is a name, `*.example.com` for every name below it, an address, a network, or `*` for every host. Without a port it
/// matches every port, without a path every path. An address with a slash and a number behind it is a network; `192.0.2.1:443/24`
/// is an address with a path. An IPv6 address needs brackets if a port follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    action: Action,
    /// `None` for every host.
    host: Option<HostPattern>,
    port: Option<u16>,
    path: Option<PathPrefix>,
    text: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Allow,
    Deny,
}

/// Why a text is not a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseRuleError {
    /// Neither `allow` nor `deny` at the beginning.
    #[error("use \"allow HOST[:PORT][/PATH]\" or \"deny HOST[:PORT][/PATH]\"")]
    Action,
    /// The host is none.
    #[error(transparent)]
    Host(#[from] ParseHostPatternError),
    /// The port is none.
    #[error(transparent)]
    Port(ParseHostError),
    /// Servers may interpret the path in different ways.
    #[error(
        "servers disagree about what this path means; write it without query, fragment, empty segments, `.`, `..`, `;`, \
         backslashes, and escapes of these"
    )]
    Path,
}

impl Rule {
    /// Parses the rule of `--allow`.
    pub fn allow(text: &str) -> Result<Self, ParseRuleError> {
        Self::parse(Action::Allow, text)
    }

    /// Parses the rule of `--deny`.
    pub fn deny(text: &str) -> Result<Self, ParseRuleError> {
        Self::parse(Action::Deny, text)
    }

    fn parse(action: Action, text: &str) -> Result<Self, ParseRuleError> {
        let Parts { host, port, path } = Parts::split(text).map_err(ParseRuleError::Port)?;
        let host = match host.as_str() {
            "*" => None,
            host => Some(host.parse()?),
        };
        let path = path.map(|path| PathPrefix::parse(path).ok_or(ParseRuleError::Path));
        Ok(Self {
            action,
            host,
            port,
            path: path.transpose()?,
            text: format!("{} {text}", action.name()).into(),
        })
    }

    /// The port, if it is for one port only.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Whether it allows every request to this host and port, whatever its path.
    pub fn allows_tunnel(&self, to: &HostPort) -> bool {
        self.allows() && self.matches_relayed_tunnel(to)
    }

    /// The host and the port of a rule with a port and without a path; no host for every host.
    pub(crate) fn as_tunnel(&self) -> Option<(Option<&HostPattern>, u16)> {
        let port = self.port.filter(|_| self.path.is_none())?;
        Some((self.host.as_ref(), port))
    }

    pub(super) fn allows(&self) -> bool {
        self.action == Action::Allow
    }

    /// The rule as it was written.
    pub(crate) fn text(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    pub(super) fn matches_request(&self, to: &HostPort, path: &RequestPath<'_>) -> bool {
        self.matches_host_and_port(to)
            && self.path.as_ref().is_none_or(|prefix| match self.action {
                Action::Allow => prefix.covers(path),
                Action::Deny => prefix.may_cover(path),
            })
    }

    /// Whether it decides on a tunnel with requests that are decided on by themselves: one of them may have the path that is
    /// allowed, and another one than that which is denied.
    pub(super) fn matches_opened_tunnel(&self, to: &HostPort) -> bool {
        self.matches_host_and_port(to) && (self.path.is_none() || self.action == Action::Allow)
    }

    /// Whether it decides on a tunnel in which no path is visible: any request in it may have the path that is denied, and
    /// another one than that which is allowed.
    pub(super) fn matches_relayed_tunnel(&self, to: &HostPort) -> bool {
        self.matches_host_and_port(to) && (self.path.is_none() || self.action == Action::Deny)
    }

    fn matches_host_and_port(&self, to: &HostPort) -> bool {
        self.port.is_none_or(|port| port == to.port)
            && self
                .host
                .as_ref()
                .is_none_or(|host| self.matches_host(host, &to.host))
    }

    /// An IPv6 address with an IPv4 address inside may lead there; so it is denied with that, and allowed by itself only.
    fn matches_host(&self, pattern: &HostPattern, host: &Host) -> bool {
        match (self.action, host.as_ip()) {
            (Action::Deny, Some(ip)) => meanings(ip).any(|ip| pattern.includes(&ip.into())),
            _ => pattern.includes(host),
        }
    }
}

impl Action {
    fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl FromStr for Rule {
    type Err = ParseRuleError;

    fn from_str(text: &str) -> Result<Self, ParseRuleError> {
        match text.split_once(' ') {
            Some(("allow", rest)) => Self::allow(rest.trim()),
            Some(("deny", rest)) => Self::deny(rest.trim()),
            _ => Err(ParseRuleError::Action),
        }
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
