//! The syntax of destinations in rules: `HOST[:PORT][/PATH]`, where HOST may be a network.

use std::net::IpAddr;

use ipnet::IpNet;
use peername_proto::parse_unbracketed;

use super::error::ParseRuleError;
use crate::host::{ParseHostError, parse_port};

/// The parts of `HOST[:PORT][/PATH]`.
pub(super) struct Parts<'a> {
    /// The host; a network is without brackets.
    pub(super) host: String,
    pub(super) port: PortPattern,
    pub(super) path: Option<&'a str>,
}

/// The ports that a rule is for: every port, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortPattern(Option<u16>);

impl PortPattern {
    const EVERY: Self = Self(None);

    fn parse(text: &str) -> Result<Self, ParseHostError> {
        Ok(Self(Some(parse_port(text)?)))
    }

    /// The ports that are named; none if the pattern is for every port.
    pub(super) fn named(self) -> impl Iterator<Item = u16> {
        self.0.into_iter()
    }

    pub(super) fn includes(self, port: u16) -> bool {
        self.0.is_none_or(|named| named == port)
    }

    pub(super) fn covers(self, other: Self) -> bool {
        self == Self::EVERY || self == other
    }
}

impl<'a> Parts<'a> {
    /// Parses the port, and leaves host and path as they are. Fails if the port is not valid, or if an IPv6 address without
    /// brackets may end in a port.
    pub(super) fn split(text: &'a str) -> Result<Self, ParseRuleError> {
        if let Some((host, rest)) = split_network(text) {
            let (port, path) = split_at_slash(rest);
            let port = match port {
                "" => PortPattern::EVERY,
                port => PortPattern::parse(port.strip_prefix(':').unwrap_or_default())?,
            };
            return Ok(Self { host, port, path });
        }
        let (authority, path) = split_at_slash(text);
        if let Some(suggestion) = parse_unbracketed(authority) {
            return Err(ParseRuleError::Unbracketed(suggestion));
        }
        let is_address = authority.parse::<IpAddr>().is_ok();
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !is_address && !port.ends_with(']') => {
                (host, PortPattern::parse(port)?)
            }
            _ => (authority, PortPattern::EVERY),
        };
        let host = host.to_owned();
        Ok(Self { host, port, path })
    }
}

/// Splits off a network: an address, a slash and a number.
fn split_network(text: &str) -> Option<(String, &str)> {
    // The form of `--allow-destination`: `[2001:db8::/32]:443`.
    if let Some((inside, rest)) = text.strip_prefix('[').and_then(|text| text.split_once(']'))
        && inside.parse::<IpNet>().is_ok()
    {
        return Some((inside.to_owned(), rest));
    }
    let (address, rest) = text.split_once('/')?;
    let (address, rest) = match address.strip_prefix('[') {
        Some(inside) => (inside.strip_suffix(']')?, rest),
        None => (address, rest),
    };
    address.parse::<IpAddr>().ok()?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (length, rest) = rest.split_at_checked(end)?;
    let is_prefix_length = !length.is_empty() && (rest.is_empty() || rest.starts_with([':', '/']));
    is_prefix_length.then(|| (format!("{address}/{length}"), rest))
}

fn split_at_slash(text: &str) -> (&str, Option<&str>) {
    let slash = text.find('/').unwrap_or(text.len());
    match text.split_at_checked(slash) {
        Some((before, "")) => (before, None),
        Some((before, path)) => (before, Some(path)),
        None => (text, None),
    }
}
