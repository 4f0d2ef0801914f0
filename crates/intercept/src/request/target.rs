//! One name or no pass: what a connection is for, and that each request on it says the same.
//!
//! Whoever asks a policy about one name and sends to another has no policy. So CONNECT, SNI and Host are
//! compared in one spelling ([`Host`]), and the one they agree on is asked about, connected to, verified in the
//! origin's certificate, and written into the request.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::request::Parts;
use http::{StatusCode, Version, header};

use crate::authz::Authority;
use crate::host::{Host, HostPort};
use crate::request::refusal::Refusal;

/// The place that all requests of a connection are for.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) to: HostPort,
    /// The host as text.
    pub(crate) host: Box<str>,
    /// Whether the origin is spoken to by TLS.
    pub(crate) tls: bool,
    /// The address that the client was going to, where it was redirected to us.
    pub(crate) via: Option<IpAddr>,
    /// What CONNECT asked for.
    pub(crate) connect: Option<HostPort>,
    /// What the ClientHello asked for.
    pub(crate) sni: Option<Host>,
    /// What the client and we agreed on.
    pub(crate) alpn: Option<&'static str>,
    pub(crate) tls_version: Option<&'static str>,
    /// Why nothing may pass, whatever is asked for.
    pub(crate) barred: Option<Box<Refusal>>,
    /// The CONNECT, if the check has said no to it and the client has to be told inside. It is asked about again
    /// with each request: a no stands no longer than the check says.
    pub(crate) denied: Option<Arc<Parts>>,
}

impl Going {
    /// The place, where nothing but this names it.
    pub(crate) fn plain(&self) -> Named {
        match self {
            Self::Connect(to) => Named::plain(to.clone(), Some(to.clone())),
            Self::Redirected(addr) => Named::plain(
                HostPort {
                    host: addr.ip().into(),
                    port: addr.port(),
                },
                None,
            ),
        }
    }
}

/// Where a connection says it is going, before it has said anything else.
#[derive(Clone, Debug)]
pub(crate) enum Going {
    /// CONNECT.
    Connect(HostPort),
    /// It was redirected to us on its way there.
    Redirected(SocketAddr),
}

impl Named {
    /// The place of `http:` requests.
    pub(crate) fn plain(to: HostPort, connect: Option<HostPort>) -> Self {
        Self {
            host: to.host.to_string().into(),
            to,
            tls: false,
            via: None,
            connect,
            sni: None,
            alpn: None,
            tls_version: None,
            barred: None,
            denied: None,
        }
    }

    /// The place that a ClientHello's name and what came before it agree on. Where they don't, the handshake is
    /// still done, as the name that the client wants to see, so that it can be told why.
    pub(crate) fn by_tls(going: &Going, sni: Option<Host>) -> Self {
        let (to, via, connect) = match going {
            Going::Connect(to) => (to.clone(), None, Some(to.clone())),
            Going::Redirected(addr) => match &sni {
                Some(name) => {
                    let (host, port) = (name.clone(), addr.port());
                    (HostPort { host, port }, Some(addr.ip()), None)
                }
                None => (
                    HostPort {
                        host: addr.ip().into(),
                        port: addr.port(),
                    },
                    None,
                    None,
                ),
            },
        };
        let barred = sni.as_ref().filter(|sni| **sni != to.host).map(|sni| {
            let detail = format!("CONNECT names {} and SNI {sni}", to.host);
            Box::new(Refusal::names(StatusCode::FORBIDDEN, detail))
        });
        let host = sni.as_ref().unwrap_or(&to.host).clone();
        Self {
            barred,
            connect,
            sni,
            tls: true,
            via,
            ..Self::plain(
                HostPort {
                    host,
                    port: to.port,
                },
                None,
            )
        }
    }

    /// The host as the check is told it.
    pub(crate) fn authority(&self) -> Authority<'_> {
        Authority {
            host: &self.host,
            port: self.to.port,
        }
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }

    /// Whether a request on this connection is for this place.
    ///
    /// # Errors
    ///
    /// 421 for HTTP/2, where a client may take one connection for two hosts and has to be told that it can't
    /// (RFC 9110, section 15.5.20); 403 for HTTP/1, 400 for what can't be understood.
    pub(crate) fn agrees(&self, request: &Parts) -> Result<(), Refusal> {
        let status = match request.version {
            Version::HTTP_2 => StatusCode::MISDIRECTED_REQUEST,
            _ => StatusCode::FORBIDDEN,
        };
        if let Some(scheme) = request.uri.scheme_str()
            && !scheme.eq_ignore_ascii_case(self.scheme())
        {
            let detail = format!("the request is for another scheme than {}", self.scheme());
            return Err(Refusal::names(status, detail));
        }
        let asked = asked(request, if self.tls { 443 } else { 80 })?;
        match asked {
            None if request.version == Version::HTTP_11 || request.version == Version::HTTP_2 => {
                Err(Refusal::bad_request("the request names no host"))
            }
            None => Ok(()),
            Some(asked) if asked == self.to => Ok(()),
            Some(asked) => {
                let detail = format!(
                    "the connection is for {} and the request for {asked}",
                    self.to
                );
                Err(Refusal::names(status, detail))
            }
        }
    }
}

/// The one host and port that a request names, in its target or in Host; both if it has both.
///
/// # Errors
///
/// They differ, or one of them is no host.
pub(crate) fn asked(request: &Parts, default_port: u16) -> Result<Option<HostPort>, Refusal> {
    let read = |text: &str| {
        HostPort::parse_or(text, default_port)
            .map_err(|why| Refusal::bad_request(format!("the host of the request: {why}")))
    };
    let target = request.uri.authority();
    let target = target
        .map(|authority| read(authority.as_str()))
        .transpose()?;
    let mut hosts = request.headers.get_all(header::HOST).iter();
    let host = hosts
        .next()
        .map(|value| match value.to_str() {
            Ok(text) => read(text),
            Err(_) => Err(Refusal::bad_request("a Host that is not ASCII")),
        })
        .transpose()?;
    if hosts.next().is_some() {
        return Err(Refusal::bad_request("more than one Host header"));
    }
    match (target, host) {
        (Some(target), Some(host)) if target != host => {
            let detail = format!("the request's target names {target} and its Host header {host}");
            Err(Refusal::names(StatusCode::FORBIDDEN, detail))
        }
        (target, host) => Ok(target.or(host)),
    }
}

#[cfg(test)]
mod tests;
