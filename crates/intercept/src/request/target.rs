//! The target of a connection: the one host and port that CONNECT, SNI, Host and the origin's certificate agree on.
//!
//! A policy that is asked about one name while the request goes to another is no policy. So CONNECT, SNI and Host are
//! compared in one spelling ([`Host`]), and the name on which they agree is the one that is checked, connected to,
//! verified in the origin's certificate, and written into the request.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::request::Parts;
use http::uri::Authority;
use http::{Method, StatusCode, Version, header};

use super::refusal::Refusal;
use super::via::ViaLines;
use crate::host::{Host, HostPort};

/// The target of all requests on a connection.
#[derive(Clone, Debug)]
pub(crate) struct RequestTarget {
    pub(crate) to: HostPort,
    /// The host as text.
    pub(crate) host: Box<str>,
    /// Host and port as most requests name them.
    authority: Box<str>,
    /// Whether the origin is spoken to over TLS.
    pub(crate) is_tls: bool,
    /// The original destination of a redirected connection whose ClientHello has a name.
    pub(crate) original_dst: Option<IpAddr>,
    /// The target of CONNECT.
    pub(crate) connect: Option<HostPort>,
    /// The Via lines of the CONNECT.
    pub(crate) via: ViaLines,
    /// The server name in the ClientHello.
    pub(crate) sni: Option<Host>,
    /// The protocol that the client and the proxy negotiated.
    pub(crate) alpn: Option<&'static str>,
    pub(crate) tls_version: Option<&'static str>,
    /// Set if every request is refused.
    pub(crate) refusal: Option<Box<Refusal>>,
    /// The CONNECT, if the check denied it and the client gets the denial inside the tunnel. It is checked again with
    /// each request: a denial lasts no longer than the check service says.
    pub(crate) denied_connect: Option<Arc<Parts>>,
}

/// The destination of a connection, before anything inside it is read.
#[derive(Clone, Debug)]
pub(crate) enum Destination {
    /// The target of CONNECT, and its Via lines.
    Connect { to: HostPort, via: ViaLines },
    /// The original destination of a connection that was redirected to the proxy.
    Redirected(SocketAddr),
    /// The destination of a jailed program's connection: the name to which its synthetic address was assigned, or the address
    /// if it is not synthetic.
    Named(HostPort),
}

impl Destination {
    /// The target of a connection that has no server name to compare with its destination.
    pub(crate) fn to_target(&self) -> RequestTarget {
        match self {
            Self::Connect { to, via } => RequestTarget::from_connect(to.clone(), Arc::clone(via)),
            Self::Redirected(addr) => RequestTarget::plain((*addr).into()),
            Self::Named(to) => RequestTarget::plain(to.clone()),
        }
    }
}

impl RequestTarget {
    /// The target of `http:` requests.
    pub(crate) fn plain(to: HostPort) -> Self {
        Self {
            host: to.host.to_string().into(),
            authority: to.to_authority("http").into(),
            to,
            is_tls: false,
            original_dst: None,
            connect: None,
            via: ViaLines::default(),
            sni: None,
            alpn: None,
            tls_version: None,
            refusal: None,
            denied_connect: None,
        }
    }

    /// The target of a CONNECT with these Via lines.
    pub(crate) fn from_connect(to: HostPort, via: ViaLines) -> Self {
        Self {
            connect: Some(to.clone()),
            via,
            ..Self::plain(to)
        }
    }

    /// The target of an `https:` request to the proxy itself, which has no ClientHello.
    pub(crate) fn encrypted(to: HostPort) -> Self {
        Self {
            is_tls: true,
            authority: to.to_authority("https").into(),
            ..Self::plain(to)
        }
    }

    /// The target on which the destination and the ClientHello's name agree. If they differ, every request is refused; the
    /// handshake is still finished, under the name in the ClientHello, so that the client can be told why.
    pub(crate) fn from_client_hello(destination: &Destination, sni: Option<Host>) -> Self {
        let via = match destination {
            Destination::Connect { via, .. } => Arc::clone(via),
            Destination::Redirected(_) | Destination::Named(_) => ViaLines::default(),
        };
        let (to, original_dst, connect) = match (destination, &sni) {
            (Destination::Connect { to, .. }, _) => (to.clone(), None, Some(to.clone())),
            (Destination::Named(to), _) => (to.clone(), None, None),
            (Destination::Redirected(addr), None) => ((*addr).into(), None, None),
            (Destination::Redirected(addr), Some(name)) => {
                let (host, port) = (name.clone(), addr.port());
                (HostPort { host, port }, Some(addr.ip()), None)
            }
        };
        let differing_sni = sni.as_ref().filter(|sni| !sni.is_same_as(&to.host));
        let refusal = differing_sni.map(|sni| {
            let source = match destination {
                Destination::Named(_) => "the destination",
                _ => "CONNECT",
            };
            let detail = format!("{source} names {} and SNI {sni}", to.host);
            Box::new(Refusal::name_mismatch(StatusCode::FORBIDDEN, detail))
        });
        let to = HostPort {
            host: sni.as_ref().unwrap_or(&to.host).clone(),
            port: to.port,
        };
        Self {
            refusal,
            connect,
            via,
            sni,
            original_dst,
            ..Self::encrypted(to)
        }
    }

    /// The target that a request to a proxy names first: in the request's target, else in Host. It is for records only: Host may
    /// name another target.
    pub(crate) fn first_named_by(request: &Parts) -> Option<Self> {
        let named = match request.uri.authority() {
            Some(authority) => authority.clone(),
            None => Authority::try_from(request.headers.get(header::HOST)?.as_bytes()).ok()?,
        };
        let is_https = request.uri.scheme_str() == Some("https");
        let default_port = match is_https || request.method == Method::CONNECT {
            true => 443,
            false => 80,
        };
        let to = HostPort {
            host: Host::parse(named.host()).ok()?,
            port: named.port_u16().unwrap_or(default_port),
        };
        Some(match is_https {
            true => Self::encrypted(to),
            false => Self::plain(to),
        })
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    /// Checks that a request on the connection is for this target.
    ///
    /// # Errors
    ///
    /// 421 for HTTP/2, where a client may use one connection for several hosts unless it gets this status (RFC 9110, section
    /// 15.5.20); 403 for HTTP/1; 400 for a host that is missing or can't be parsed.
    pub(crate) fn check_agreement(&self, request: &Parts) -> Result<(), Refusal> {
        let status = match request.version {
            Version::HTTP_2 => StatusCode::MISDIRECTED_REQUEST,
            _ => StatusCode::FORBIDDEN,
        };
        if let Some(scheme) = request.uri.scheme_str()
            && !scheme.eq_ignore_ascii_case(self.scheme())
        {
            let detail = format!("the request is for another scheme than {}", self.scheme());
            return Err(Refusal::name_mismatch(status, detail));
        }
        if self.is_named_by(request) {
            return Ok(());
        }
        let Some(requested) = requested_host(request, if self.is_tls { 443 } else { 80 })? else {
            return match request.version {
                Version::HTTP_11 | Version::HTTP_2 => {
                    Err(Refusal::bad_request("the request names no host"))
                }
                _ => Ok(()),
            };
        };
        if requested.port == self.to.port && requested.host.is_same_as(&self.to.host) {
            return Ok(());
        }
        let to = &self.to;
        let detail = format!("the connection is for {to} and the request for {requested}");
        Err(Refusal::name_mismatch(status, detail))
    }

    /// Whether the request names this target once, and in the spelling that needs no parsing.
    fn is_named_by(&self, request: &Parts) -> bool {
        let mut hosts = request.headers.get_all(header::HOST).iter();
        let named = match (request.uri.authority(), hosts.next(), hosts.next()) {
            (Some(authority), None, _) => authority.as_str().as_bytes(),
            (None, Some(host), None) => host.as_bytes(),
            _ => return false,
        };
        named == self.authority.as_bytes()
    }
}

/// The host and port that a request names in its target, in Host, or in both.
///
/// # Errors
///
/// The two differ, one of them is no host, or there is more than one Host header.
pub(crate) fn requested_host(
    request: &Parts,
    default_port: u16,
) -> Result<Option<HostPort>, Refusal> {
    let parse = |text: &str| {
        HostPort::parse_or(text, default_port)
            .map_err(|why| Refusal::bad_request(format!("the host of the request: {why}")))
    };
    let target = request
        .uri
        .authority()
        .map(|authority| parse(authority.as_str()))
        .transpose()?;
    let mut hosts = request.headers.get_all(header::HOST).iter();
    let host = hosts
        .next()
        .map(|value| match value.to_str() {
            Ok(text) => parse(text),
            Err(_) => Err(Refusal::bad_request("a Host that is not ASCII")),
        })
        .transpose()?;
    if hosts.next().is_some() {
        return Err(Refusal::bad_request("more than one Host header"));
    }
    match (target, host) {
        (Some(target), Some(host)) if target != host => {
            let detail = format!("the request's target names {target} and its Host header {host}");
            Err(Refusal::name_mismatch(StatusCode::FORBIDDEN, detail))
        }
        (target, host) => Ok(target.or(host)),
    }
}

#[cfg(test)]
mod tests;
