//! Patterns for hosts: a name or address, the names below a domain, a network.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use peername_proto::{ParseNetworkError, parse_network};

use crate::host::Host;

/// A pattern for hosts: one host, the names below a domain, or a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// `example.com`: this name or address.
    Host(Host),
    /// `.example.com` or `*.example.com`: every name below `example.com`, but not `example.com`.
    Below(Host),
    /// `192.0.2.0/24`: the addresses of this network, if the client names an address. A name that resolves to one is not included.
    Network(IpNet),
}

/// Why a text is not a host, domain or network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseHostPatternError {
    /// The syntax is wrong.
    #[error("use a host (example.com), a domain (*.example.com) or a network (192.0.2.0/24)")]
    Form,
    /// A URL, or a host with a port or a path.
    #[error("write the host alone, without scheme, port and path: example.com, *.example.com")]
    NotAlone,
    /// A network whose bits after the prefix length are not all zero.
    #[error(transparent)]
    HostBits(ParseNetworkError),
}

impl FromStr for HostPattern {
    type Err = ParseHostPatternError;

    fn from_str(text: &str) -> Result<Self, ParseHostPatternError> {
        Self::parse(text).map_err(|error| match error {
            ParseHostPatternError::Form if has_other_parts(text) => ParseHostPatternError::NotAlone,
            error => error,
        })
    }
}

/// Whether the text has a host, and beside it a scheme, a port or a path.
fn has_other_parts(text: &str) -> bool {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let host = rest.split([':', '/']).next().unwrap_or(rest);
    let is_network = host.parse::<IpAddr>().is_ok() && text.contains('/');
    let is_ipv6 = rest.matches(':').nth(1).is_some();
    host != text && !is_network && !is_ipv6 && HostPattern::parse(host).is_ok()
}

impl HostPattern {
    fn parse(text: &str) -> Result<Self, ParseHostPatternError> {
        if text.contains('/') {
            let network = parse_network(text).map_err(|error| match error {
                ParseNetworkError::Form => ParseHostPatternError::Form,
                ParseNetworkError::HostBits { .. } => ParseHostPatternError::HostBits(error),
            })?;
            return Ok(Self::Network(network));
        }
        let below = text.strip_prefix('*').unwrap_or(text).strip_prefix('.');
        let host = Host::parse(below.unwrap_or(text)).map_err(|_| ParseHostPatternError::Form)?;
        match (below, host.as_ip()) {
            (Some(_), Some(_)) => Err(ParseHostPatternError::Form),
            (Some(_), None) => Ok(Self::Below(host)),
            (None, _) => Ok(Self::Host(host)),
        }
    }

    /// Whether this host matches the pattern.
    pub fn includes(&self, host: &Host) -> bool {
        match self {
            Self::Host(included) => included == host,
            Self::Below(domain) => is_below(host, domain),
            Self::Network(network) => host.as_ip().is_some_and(|ip| network.contains(&ip)),
        }
    }

    /// Whether every host that matches `other` also matches this pattern.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Network(network), Self::Network(other)) => network.contains(other),
            (_, Self::Host(host)) => self.includes(host),
            (Self::Below(domain), Self::Below(other)) => domain == other || is_below(other, domain),
            _ => false,
        }
    }
}

fn is_below(host: &Host, domain: &Host) -> bool {
    let (Some(host), Some(domain)) = (host.as_name(), domain.as_name()) else {
        return false;
    };
    host.strip_suffix(domain)
        .is_some_and(|label| label.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn includes(pattern: &str, host: &str) -> bool {
        let pattern: HostPattern = pattern.parse().unwrap();
        pattern.includes(&Host::parse(host).unwrap())
    }

    #[test]
    fn pattern_includes_its_host_the_names_below_its_domain_or_its_network() {
        assert!(includes("a.test", "A.test."));
        assert!(!includes("a.test", "b.a.test"));
        for domain in ["*.a.test", ".a.test"] {
            assert!(includes(domain, "b.a.test") && includes(domain, "c.b.a.test"));
            assert!(!includes(domain, "a.test") && !includes(domain, "ba.test"));
        }
        assert!(includes("192.0.2.0/24", "192.0.2.7"));
        assert!(includes("192.0.2.0/24", "::ffff:192.0.2.7"));
        assert!(includes("::ffff:192.0.2.0/120", "192.0.2.7"));
        assert!(!includes("192.0.2.0/24", "a.test"));
    }

    #[test]
    fn text_that_is_no_pattern_is_refused() {
        for wrong in ["", "*", "*.192.0.2.1", "a test", "*.*.test", "192.0.2.0/33"] {
            let error = wrong.parse::<HostPattern>();
            assert_eq!(error, Err(ParseHostPatternError::Form), "{wrong}");
        }
        for wrong in ["https://a.test", "a.test:443", "a.test/x", "192.0.2.1:443"] {
            let error = wrong.parse::<HostPattern>();
            assert_eq!(error, Err(ParseHostPatternError::NotAlone), "{wrong}");
        }
    }
}
