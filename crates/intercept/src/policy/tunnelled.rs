//! The destinations that a jail relays unopened (`--allow-tcp`).

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use crate::authz::{AccessRules, ParseRuleError, Rule};
use crate::host::HostPort;

/// A destination whose connections are relayed as they are: a rule with a port and nothing else, `HOST:PORT`.
#[derive(Clone, Debug)]
pub struct TunnelledDestination(Rule);

/// Why a text is not a host, domain or network with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseTunnelledError {
    /// An IPv6 address without brackets, followed by a port.
    #[error(transparent)]
    Unbracketed(ParseRuleError),
    /// Anything else.
    #[error("use HOST:PORT, such as github.com:22, *.example.com:5432 or 192.0.2.7:22")]
    Form,
}

impl FromStr for TunnelledDestination {
    type Err = ParseTunnelledError;

    fn from_str(text: &str) -> Result<Self, ParseTunnelledError> {
        let rule = Rule::allow(text).map_err(|error| match error {
            ParseRuleError::Unbracketed(_) => ParseTunnelledError::Unbracketed(error),
            _ => ParseTunnelledError::Form,
        })?;
        Self::from_rule(rule).ok_or(ParseTunnelledError::Form)
    }
}

/// As `--allow-tcp` takes it.
impl Display for TunnelledDestination {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let text = self.0.text();
        f.write_str(text.strip_prefix("allow ").unwrap_or(&text))
    }
}

impl TunnelledDestination {
    /// The destination of a rule that has a port, and neither methods nor a path.
    #[must_use]
    pub fn from_rule(rule: Rule) -> Option<Self> {
        (rule.names_port() && !rule.is_partial()).then_some(Self(rule))
    }

    /// Access lists that deny everything but these destinations.
    #[must_use]
    pub fn access_rules(tunnelled: &[Self]) -> AccessRules {
        AccessRules::deny_others(tunnelled.iter().map(|listed| listed.0.clone()).collect())
    }

    /// The ports.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        self.0.named_ports()
    }

    /// Whether the host is one name or address, and not a domain, a network or every host.
    #[must_use]
    pub fn names_one_host(&self) -> bool {
        self.0.names_one_host()
    }

    pub(crate) fn includes(&self, to: &HostPort) -> bool {
        self.0.allows_tunnel(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnelled_destinations_are_hosts_domains_and_networks_with_a_port() {
        let includes = |listed: &str, to: &str| {
            let listed: TunnelledDestination = listed.parse().unwrap();
            listed.includes(&HostPort::parse(to).unwrap())
        };
        assert!(includes("a.test:22", "A.test:22"));
        let written = "*.a.test:22";
        let parsed: TunnelledDestination = written.parse().unwrap();
        assert_eq!(parsed.to_string(), written);
        assert!(!includes("a.test:22", "a.test:23") && !includes("a.test:22", "b.test:22"));
        assert!(includes("*.a.test:22", "b.a.test:22"));
        assert!(includes("*:22", "b.test:22") && !includes("*:22", "b.test:23"));
        assert!(includes("192.0.2.7:22", "192.0.2.7:22"));
        assert!(includes("[2001:db8::]/32:22", "[2001:db8::7]:22"));
        assert!(includes("[2001:db8::/32]:22", "[2001:db8::7]:22"));
        assert!(includes("[2001:db8::7]:22", "[2001:db8::7]:22"));
        let rule = |text: &str| TunnelledDestination::from_rule(Rule::allow(text).unwrap());
        let listed = rule("*.a.test:22").unwrap();
        assert!(listed.includes(&HostPort::parse("b.a.test:22").unwrap()));
        assert!(rule("a.test").is_none() && rule("a.test:22/x").is_none());
        for wrong in ["a.test", "a.test:0", "a.test:65536", ":22", "a.test:ssh"] {
            assert!(wrong.parse::<TunnelledDestination>().is_err(), "{wrong}");
        }
    }
}
