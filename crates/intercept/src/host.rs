//! The one spelling of a host's name.
//!
//! A request names its host four times: in CONNECT, in SNI, in Host or `:authority`, and in the certificate that the proxy
//! mints. Whether they agree is decided by comparing two [`Host`]s. So each host has one spelling, and a text that resolvers,
//! browsers and libraries interpret differently is refused.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use rustls::pki_types::{DnsName, ServerName};

#[cfg(test)]
mod tests;

/// A DNS name in lower-case ASCII without its final dot, or an address.
///
/// Names in other scripts come as A-labels (`xn--…`) and stay as they are. A clone costs a reference count.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host(Kind);

/// A name or an address.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Name(Arc<str>),
    Ip(IpAddr),
}

/// Why a text names no host. Nothing of the text is quoted: any client may have sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseHostError {
    /// The text is empty, or empty before the port.
    #[error("no host name")]
    Empty,
    /// More than 253 bytes, or a label of more than 63 (RFC 1035, section 2.3.4).
    #[error("a host name of more than 253 bytes, or a label of more than 63")]
    TooLong,
    /// A character other than letters, digits, hyphen, underscore and dot. Other scripts have to be written as `xn--…`.
    #[error(
        "a host name has letters, digits, hyphens, underscores and dots; other scripts as xn--"
    )]
    Character,
    /// An empty label, or one that begins or ends with a hyphen.
    #[error("a host name with an empty label, or a hyphen at the edge of one")]
    Label,
    /// An address in a form that programs interpret differently, such as `127.1`, `0x7f.1`, `2130706433`, or with a zone:
    /// neither four decimal numbers nor the text of RFC 4291.
    #[error("an address in an ambiguous form; write 192.0.2.1 or [2001:db8::1]")]
    Address,
    /// SNI has names only (RFC 6066, section 3).
    #[error("an address as server name indication")]
    AddressAsSni,
    /// `user@host`.
    #[error("a user name before the host")]
    UserInfo,
    /// No port where there must be one, or not a number from 1 to 65535.
    #[error("a port is a number from 1 to 65535")]
    Port,
}

impl Host {
    /// Parses a name, an IPv4 address, or an IPv6 address with or without brackets. One final dot of a name is removed. An
    /// IPv4-mapped address becomes the IPv4 address.
    pub fn parse(text: &str) -> Result<Self, ParseHostError> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(ParseHostError::Address)?;
            return parse_v6(inner);
        }
        if text.contains(':') {
            return parse_v6(text);
        }
        if let Ok(ip) = text.parse::<Ipv4Addr>() {
            return Ok(IpAddr::V4(ip).into());
        }
        parse_name(text)
    }

    /// Parses the server name indication of a ClientHello, which is never an address.
    pub fn from_sni(text: &str) -> Result<Self, ParseHostError> {
        match Self::parse(text)? {
            Self(Kind::Ip(_)) => Err(ParseHostError::AddressAsSni),
            host => Ok(host),
        }
    }

    /// The name or the address.
    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// The address, if it is one.
    #[must_use]
    pub fn as_ip(&self) -> Option<IpAddr> {
        match self.0 {
            Kind::Ip(ip) => Some(ip),
            Kind::Name(_) => None,
        }
    }

    /// The name, if it is one.
    #[must_use]
    pub fn as_name(&self) -> Option<&str> {
        match &self.0 {
            Kind::Name(name) => Some(name),
            Kind::Ip(_) => None,
        }
    }

    /// Whether both are the same host: `localhost` is 127.0.0.1 and `::1` (RFC 6761, section 6.3).
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        self == other
            || self.is_localhost() && other.is_localhost_address()
            || self.is_localhost_address() && other.is_localhost()
    }

    /// Whether it is the name `localhost`.
    pub fn is_localhost(&self) -> bool {
        self.as_name() == Some("localhost")
    }

    /// Whether it is one of the addresses of `localhost`.
    pub fn is_localhost_address(&self) -> bool {
        self.as_ip().is_some_and(|ip| LOCALHOST.contains(&ip))
    }

    /// The name that a TLS client requests, and verifies in the certificate.
    #[must_use]
    pub fn to_server_name(&self) -> ServerName<'static> {
        match &self.0 {
            Kind::Ip(ip) => ServerName::IpAddress((*ip).into()),
            Kind::Name(name) => ServerName::DnsName(
                DnsName::try_from_str(name)
                    .expect("`parse_name` has checked it")
                    .to_owned(),
            ),
        }
    }
}

impl From<IpAddr> for Host {
    fn from(ip: IpAddr) -> Self {
        Self(Kind::Ip(ip.to_canonical()))
    }
}

/// Without brackets.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Name(name) => f.write_str(name),
            Kind::Ip(ip) => ip.fmt(f),
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A host and a port, as CONNECT, Host and `:authority` name them.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// The host.
    pub host: Host,
    /// Never 0.
    pub port: u16,
}

impl HostPort {
    /// Parses `host:port`, the form of CONNECT (RFC 9110, section 9.3.6).
    pub fn parse(text: &str) -> Result<Self, ParseHostError> {
        let (host, port) = split(text)?;
        let port = port.ok_or(ParseHostError::Port)?;
        Ok(Self { host, port })
    }

    /// Parses `host` or `host:port`, the form of Host and `:authority`.
    pub fn parse_or(text: &str, default_port: u16) -> Result<Self, ParseHostError> {
        let (host, port) = split(text)?;
        let port = port.unwrap_or(default_port);
        Ok(Self { host, port })
    }

    /// The same port of `localhost`.
    #[must_use]
    pub fn at_localhost(&self) -> Self {
        Self {
            host: Host(Kind::Name("localhost".into())),
            port: self.port,
        }
    }

    /// The form of Host and `:authority`: with the port, unless the scheme implies it. An empty scheme implies no port.
    pub(crate) fn to_authority(&self, scheme: &str) -> String {
        let mut text = self.to_string();
        let implied = match scheme {
            "https" => ":443",
            "http" => ":80",
            _ => return text,
        };
        if text.ends_with(implied) {
            text.truncate(text.len() - implied.len());
        }
        text
    }
}

impl From<SocketAddr> for HostPort {
    fn from(addr: SocketAddr) -> Self {
        Self {
            host: addr.ip().into(),
            port: addr.port(),
        }
    }
}

/// An IPv6 address in brackets.
impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.as_ip() {
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            _ => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Debug for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn split(text: &str) -> Result<(Host, Option<u16>), ParseHostError> {
    if text.contains('@') {
        return Err(ParseHostError::UserInfo);
    }
    // The last colon is that of a port, unless it is inside the brackets of an address.
    match text.rsplit_once(':') {
        Some((host, digits)) if !digits.ends_with(']') => {
            // Without brackets the port can't be told from the last group.
            if host.contains(':') && !host.starts_with('[') {
                return Err(ParseHostError::Address);
            }
            Ok((Host::parse(host)?, Some(parse_port(digits)?)))
        }
        _ => Ok((Host::parse(text)?, None)),
    }
}

/// Parses digits only: `u16::from_str` would accept `+443` too.
pub(crate) fn parse_port(digits: &str) -> Result<u16, ParseHostError> {
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ParseHostError::Port);
    }
    match digits.parse::<u16>() {
        Ok(0) | Err(_) => Err(ParseHostError::Port),
        Ok(port) => Ok(port),
    }
}

fn parse_v6(text: &str) -> Result<Host, ParseHostError> {
    let ip: Ipv6Addr = text.parse().map_err(|_| ParseHostError::Address)?;
    Ok(IpAddr::V6(ip).into())
}

fn parse_name(text: &str) -> Result<Host, ParseHostError> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.is_empty() {
        return Err(ParseHostError::Empty);
    }
    if text.len() > 253 || text.split('.').any(|label| label.len() > 63) {
        return Err(ParseHostError::TooLong);
    }
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !text.bytes().all(is_valid) {
        return Err(ParseHostError::Character);
    }
    let is_malformed =
        |label: &str| label.is_empty() || label.starts_with('-') || label.ends_with('-');
    if text.split('.').any(is_malformed) {
        return Err(ParseHostError::Label);
    }
    let lower = text.to_ascii_lowercase();
    if ends_in_a_number(&lower) {
        return Err(ParseHostError::Address);
    }
    // `to_server_name` relies on this. So far no name that has passed the checks above is refused here.
    DnsName::try_from_str(&lower).map_err(|_| ParseHostError::Label)?;
    Ok(Host(Kind::Name(lower.into())))
}

/// Whether a URL parser would take a name for an IPv4 address (the ends-in-a-number checker of the WHATWG URL
/// standard): the last label is decimal, octal or hexadecimal.
fn ends_in_a_number(lower: &str) -> bool {
    let last = lower.rsplit('.').next().unwrap_or_default();
    let hex = last.strip_prefix("0x");
    last.bytes().all(|byte| byte.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The addresses of `localhost`.
pub const LOCALHOST: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];
