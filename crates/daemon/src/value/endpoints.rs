//! Addresses with ports: of listeners and backends.
//!
//! Each value is stored as it was written, so that its name can be resolved again at a reload.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use peername_proxy::config::{TargetRule, Targets};

use super::parse::{address, addresses, is_number, port_alone};

/// A listen address: `192.0.2.1:80`, `[::]:80`, `host:80`, and ranges of ports `0.0.0.0:10000-10100`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen(String);

/// The backend of the clients of its address family: `192.0.2.1:80`, `[::1]:80`, or `192.0.2.1:same` for the port that they
/// connected to. A name (`host:80`) stands for an address of each family that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target(String);

/// The address of a server, with its port: `192.0.2.1:80`, `[::1]:80`, `host:80`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(String);

impl Address {
    /// The address; resolves the name now.
    pub fn resolve(&self) -> Result<SocketAddr, String> {
        match address(&self.0)? {
            addr if addr.port() == 0 => Err("name the server's address and port".to_owned()),
            addr => Ok(addr),
        }
    }
}

impl Listen {
    /// Every address; resolves the name now.
    pub fn addresses(&self) -> Result<impl Iterator<Item = SocketAddr> + use<>, String> {
        let (first, ports) = self.range()?;
        Ok(ports.map(move |port| {
            let mut addr = first;
            addr.set_port(port);
            addr
        }))
    }

    fn range(&self) -> Result<(SocketAddr, RangeInclusive<u16>), String> {
        let text = &self.0;
        let Some((first, last)) = text.rsplit_once('-').filter(|(_, last)| is_number(last)) else {
            let addr =
                address(text).map_err(|why| match (port_alone(text), colon_range(text)) {
                    (Some(port), _) => format!("{why}, or 0.0.0.0:{port} to listen on all"),
                    (None, Some(range)) => format!("a range of ports has a hyphen: {range}"),
                    (None, None) => why,
                })?;
            return Ok((addr, addr.port()..=addr.port()));
        };
        let addr = address(first)?;
        match last.parse() {
            Ok(last) if (1..last).contains(&addr.port()) => Ok((addr, addr.port()..=last)),
            _ => Err("use an ascending range of ports from 1 to 65535: 10000-10100".to_owned()),
        }
    }
}

/// Returns the range with a hyphen that was written with a colon, as in iptables: `0.0.0.0:8443:8450`.
fn colon_range(text: &str) -> Option<String> {
    let (first, last) = text.rsplit_once(':')?;
    let is_range = first.parse::<SocketAddr>().is_ok() && is_number(last);
    is_range.then(|| format!("{first}-{last}"))
}

impl Target {
    /// The parsed value; resolves the name now.
    pub fn targets(&self) -> Result<Targets, String> {
        self.targets_among(|_| true)
    }

    /// The targets among the addresses that are wanted. The others need not be valid.
    fn targets_among(&self, is_wanted: fn(&SocketAddr) -> bool) -> Result<Targets, String> {
        let (endpoint, is_same) = split_same(&self.0);
        let mut found = addresses(&endpoint)?;
        found.retain(is_wanted);
        let v4 = found.iter().find(|addr| addr.is_ipv4());
        let v6 = found.iter().find(|addr| addr.is_ipv6());
        Ok(Targets {
            v4: v4.map(|addr| target_rule(*addr, is_same)).transpose()?,
            v6: v6.map(|addr| target_rule(*addr, is_same)).transpose()?,
        })
    }

    /// As [`Target::targets`], for IPv4 clients alone.
    pub fn target_v4(&self) -> Result<Targets, String> {
        self.targets_of_family("IPv4", SocketAddr::is_ipv4)
    }

    /// As [`Target::targets`], for IPv6 clients alone.
    pub fn target_v6(&self) -> Result<Targets, String> {
        self.targets_of_family("IPv6", SocketAddr::is_ipv6)
    }

    fn targets_of_family(
        &self,
        family: &str,
        is_wanted: fn(&SocketAddr) -> bool,
    ) -> Result<Targets, String> {
        let targets = self.targets_among(is_wanted)?;
        if targets == Targets::default() {
            return Err(format!("not an {family} address, or a name without one"));
        }
        Ok(targets)
    }
}

/// Parses the target of IPv4 clients.
pub fn target_v4(text: &str) -> Result<Target, String> {
    let target = Target(text.to_owned());
    target.target_v4()?;
    Ok(target)
}

/// Parses the target of IPv6 clients.
pub fn target_v6(text: &str) -> Result<Target, String> {
    let target = Target(text.to_owned());
    target.target_v6()?;
    Ok(target)
}

/// Returns the address with its port, and whether the port is `same`; the address has port 0 then.
fn split_same(text: &str) -> (Cow<'_, str>, bool) {
    match text.strip_suffix(":same") {
        Some(host) => (format!("{host}:0").into(), true),
        None => (text.into(), false),
    }
}

fn target_rule(addr: SocketAddr, is_same: bool) -> Result<TargetRule, String> {
    if addr.ip().is_unspecified() || !is_same && addr.port() == 0 {
        return Err("name the backend's address and port".to_owned());
    }
    if let IpAddr::V4(ip) = addr.ip().to_canonical()
        && addr.is_ipv6()
    {
        return Err(format!(
            "IPv6 clients can't connect to the IPv4 address {ip}; for an IPv4 server that has IPv6 clients see docs/exec.md"
        ));
    }
    Ok(if is_same {
        TargetRule::SamePort(addr.ip())
    } else {
        addr.into()
    })
}

/// Implements parsing for values that store their text: the check finds what is wrong, and its result is dropped.
macro_rules! checked_when_parsed {
    ($($name:ident: $check:ident;)*) => {$(
        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let value = Self(text.to_owned());
                value.$check()?;
                Ok(value)
            }
        }

        impl Display for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

checked_when_parsed! {
    Listen: range;
    Target: targets;
    Address: resolve;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(text: &str) -> Result<Vec<String>, String> {
        let addresses = text.parse::<Listen>()?.addresses()?;
        Ok(addresses.map(|addr| addr.to_string()).collect())
    }

    #[test]
    fn range_of_ports_is_expanded() {
        assert_eq!(listen("127.0.0.1:80").unwrap(), ["127.0.0.1:80"]);
        assert_eq!(listen("[::]:1-3").unwrap(), ["[::]:1", "[::]:2", "[::]:3"]);
        assert_eq!(listen("0.0.0.0:1-65535").unwrap().len(), 65_535);
        for wrong in [
            "127.0.0.1:3-1",
            "127.0.0.1:3-3",
            "127.0.0.1:0-3",
            "127.0.0.1:1-65536",
            "127.0.0.1:1-",
            "127.0.0.1:-3",
            "80-90",
        ] {
            assert!(listen(wrong).is_err(), "{wrong}");
        }
        let why = listen("0.0.0.0:8443:8450").unwrap_err();
        assert!(why.ends_with(": 0.0.0.0:8443-8450"), "{why}");
        let why = listen("*:8443").unwrap_err();
        assert!(why.ends_with("or 0.0.0.0:8443 to listen on all"), "{why}");
    }

    #[test]
    fn port_of_a_target_may_be_same() {
        for text in ["127.0.0.1:same", "127.0.0.1:80"] {
            let targets = target_v4(text).unwrap().target_v4().unwrap();
            assert_eq!(targets.v4.unwrap().to_string(), text);
        }
        for wrong in [
            "127.0.0.1:0",
            "0.0.0.0:same",
            "[::1]:same",
            "127.0.0.1:Same",
        ] {
            assert!(target_v4(wrong).is_err(), "{wrong}");
        }
        let targets_of = |text: &str| text.parse::<Target>()?.targets();
        for (text, is_ipv4) in [("127.0.0.1:80", true), ("[::1]:same", false)] {
            let targets = targets_of(text).unwrap();
            assert_eq!(
                (targets.v4.is_some(), targets.v6.is_some()),
                (is_ipv4, !is_ipv4)
            );
        }
        assert_eq!(
            targets_of("[::1]").unwrap_err(),
            "the port is missing, as in [::1]:443"
        );
        let targets = target_v6("[::1]:same").unwrap().target_v6().unwrap();
        assert_eq!(targets.v6.unwrap().to_string(), "[::1]:same");
        assert!(target_v6("127.0.0.1:80").is_err());
        let mapped = targets_of("[::ffff:127.0.0.1]:80").unwrap_err();
        assert!(mapped.contains("the IPv4 address 127.0.0.1"), "{mapped}");
        // The address of the other family is not checked.
        assert_eq!(
            target_v4("[::]:80").unwrap_err(),
            "not an IPv4 address, or a name without one"
        );
    }
}
