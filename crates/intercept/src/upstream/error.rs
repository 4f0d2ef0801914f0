//! Failures between the proxy and the origin, each with a stable code, and a hint about what to do.

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http::StatusCode;
use peername_sys::resolve::ResolveError;
use peername_sys::{Errno, is_exhaustion, is_out_of_descriptors};

use super::trust::tls_diagnosis::{Incompatibility, wants_client_certificate};
use super::trust::verifier::BadCertificate;
use crate::audit::{AuditRecord, OriginContact};
use crate::policy::destination::DestinationDenied;
use crate::request::refusal::Refusal;

/// The error of a request that got no response from its origin.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("the name does not exist")]
    NoSuchName,
    #[error("the name can't be resolved: {0}")]
    Lookup(String),
    #[error("the name can't be resolved: {0}")]
    LookupExhausted(Errno, Exhausted),
    #[error("the name was not resolved within {0:?}")]
    LookupTimeout(Duration),
    #[error("{0} is not an allowed destination: {1}")]
    Destination(SocketAddr, DestinationDenied),
    #[error("{0} did not answer within {1:?}")]
    ConnectTimeout(SocketAddr, Duration),
    #[error("{0} refused the connection")]
    ConnectRefused(SocketAddr),
    #[error("{0} can't be reached: {1}")]
    Unreachable(SocketAddr, String),
    #[error("connect(2) to {0}: {1}")]
    Exhausted(SocketAddr, String, Exhausted),
    #[error("all {0} connections to origins that are allowed at a time are in use")]
    Full(usize),
    #[error(
        "of the {0} connections to origins that are allowed at a time, the client uses its share"
    )]
    ShareFull(usize),
    #[error("the upstream proxy {0}")]
    Proxy(String),
    #[error("the upstream proxy answered CONNECT with {0}")]
    ProxyRefused(u16),
    #[error("the PROXY header could not be sent: {0}")]
    ProxyHeader(String),
    #[error("{0}")]
    Certificate(BadCertificate),
    #[error("the TLS handshake failed: {0}")]
    Handshake(String),
    #[error("the TLS handshake failed: {0}")]
    Incompatible(Incompatibility),
    #[error("the TLS handshake took longer than {0:?}")]
    HandshakeTimeout(Duration),
    #[error("the origin closed the connection before it had answered")]
    Closed,
    #[error("the origin refused the request before it had processed it: {0}")]
    Unprocessed(h2::Reason),
    #[error("the origin reset the stream: {0}")]
    Reset(h2::Reason),
    #[error("the origin did not answer within {0:?}")]
    ResponseTimeout(Duration),
    #[error("the origin's answer is not valid HTTP: {0}")]
    BadResponse(String),
    #[error("nothing of the request's body came for {0:?}")]
    RequestIdle(Duration),
    #[error("the request ended before its body did")]
    RequestCut,
}

/// What this host lacks for a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Exhausted {
    Descriptors,
    Ports,
    Memory,
}

impl Exhausted {
    /// What a system call failed for; `None` for other errors.
    fn from_error(error: &io::Error) -> Option<Self> {
        match error.kind() {
            io::ErrorKind::AddrNotAvailable => Some(Self::Ports),
            _ if is_out_of_descriptors(error) => Some(Self::Descriptors),
            _ if is_exhaustion(error) => Some(Self::Memory),
            _ => None,
        }
    }

    fn hint(self) -> &'static str {
        match self {
            Self::Descriptors => "the proxy ran out of descriptors: raise LimitNOFILE",
            Self::Ports => {
                "no port of the proxy's host is left, or no address leads there: widen net.ipv4.ip_local_port_range"
            }
            Self::Memory => "the kernel of the proxy's host has no memory left for sockets",
        }
    }
}

/// An error, and the address that was tried.
#[derive(Clone, Debug)]
pub struct FailedAttempt {
    pub(crate) error: UpstreamError,
    /// `None` if no address was tried.
    pub(crate) tried: Option<SocketAddr>,
}

impl From<UpstreamError> for FailedAttempt {
    fn from(error: UpstreamError) -> Self {
        let tried = match &error {
            UpstreamError::ConnectTimeout(addr, _)
            | UpstreamError::ConnectRefused(addr)
            | UpstreamError::Unreachable(addr, _)
            | UpstreamError::Exhausted(addr, ..) => Some(*addr),
            _ => None,
        };
        Self { error, tried }
    }
}

impl FailedAttempt {
    /// Records the failure. A destination that is not allowed counts as a refusal by the proxy. `may_suggest_rule`
    /// tells whether a rule for the host may be what opens its address.
    pub(crate) fn record_in(&self, record: &mut AuditRecord, may_suggest_rule: bool) {
        if self.tried.is_some() {
            *record.to_upstream.tried.lock() = self.tried;
        }
        record.origin = self.error.origin_contact();
        if let UpstreamError::Destination(addr, why) = self.error {
            record.set_refused_by_rule();
            if let Some(target) = &record.target
                && let Some(remedy) =
                    why.remedy(&target.to, target.original_dst, addr, may_suggest_rule)
            {
                record.remedy = Some(remedy);
            }
        }
    }
}

impl UpstreamError {
    /// Converts an error about the origin to the same error about the upstream proxy. What this host lacks stays the same.
    pub(super) fn in_proxy(self) -> Self {
        match self {
            Self::Exhausted(..) | Self::LookupExhausted(..) => self,
            error => Self::Proxy(error.to_string()),
        }
    }

    /// Converts the error of a lookup.
    pub(super) fn from_lookup(error: ResolveError) -> Self {
        match error {
            ResolveError::NoSuchName => Self::NoSuchName,
            ResolveError::Lookup(why) => Self::Lookup(why),
            ResolveError::System(errno) => match Exhausted::from_error(&errno.into()) {
                Some(exhausted) => Self::LookupExhausted(errno, exhausted),
                None => Self::Lookup(errno.to_string()),
            },
        }
    }

    /// Converts the error of a TLS handshake with an origin.
    pub(super) fn from_tls(error: &io::Error) -> Self {
        let inner: Option<&rustls::Error> = error.get_ref().and_then(|inner| inner.downcast_ref());
        let bad_certificate = inner.and_then(BadCertificate::from_tls_error);
        match bad_certificate {
            Some(bad) => Self::Certificate(bad),
            None if inner.is_some_and(wants_client_certificate) => {
                Self::Incompatible(Incompatibility::ClientCertificate)
            }
            None => Self::Handshake(error.to_string()),
        }
    }

    /// Adds the address of the connection.
    pub(super) fn at(self, addr: SocketAddr) -> FailedAttempt {
        FailedAttempt {
            error: self,
            tried: Some(addr),
        }
    }

    /// Converts the error of an exchange. HTTP/2 tells whether the origin has processed the request (RFC 9113, section 8.7):
    /// after a GOAWAY, h2 reports an error only to streams above the last one that the GOAWAY names.
    pub(super) fn from_exchange(error: &hyper::Error) -> Self {
        if error.is_user() {
            return Self::RequestCut;
        }
        if error.is_parse() {
            return Self::BadResponse(error.to_string());
        }
        if let Some(error) = Self::tls_alert(error) {
            return error;
        }
        let sent_by_origin = error
            .source()
            .and_then(|source| source.downcast_ref::<h2::Error>())
            .filter(|error| error.is_remote())
            .and_then(|error| Some((error, error.reason()?)));
        match sent_by_origin {
            Some((error, reason)) if error.is_go_away() => Self::Unprocessed(reason),
            Some((_, reason @ (h2::Reason::REFUSED_STREAM | h2::Reason::HTTP_1_1_REQUIRED))) => {
                Self::Unprocessed(reason)
            }
            Some((_, reason)) => Self::Reset(reason),
            None => Self::Closed,
        }
    }

    /// Converts the error of an exchange that a TLS alert ended; `None` for other errors. Of an alert, h2 keeps only the text.
    fn tls_alert(error: &hyper::Error) -> Option<Self> {
        let source = error.source()?;
        if let Some(error) = source.downcast_ref().and_then(h2::Error::get_io) {
            let is_tls = error.kind() == io::ErrorKind::InvalidData;
            return is_tls.then(|| Self::Handshake(error.to_string()));
        }
        let error: &rustls::Error = source
            .downcast_ref::<io::Error>()?
            .get_ref()?
            .downcast_ref()?;
        Some(match wants_client_certificate(error) {
            true => Self::Incompatible(Incompatibility::ClientCertificate),
            false => Self::Handshake(error.to_string()),
        })
    }

    /// Converts the error of connect(2).
    pub(super) fn from_connect(addr: SocketAddr, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            return Self::ConnectRefused(addr);
        }
        match Exhausted::from_error(error) {
            Some(exhausted) => Self::Exhausted(addr, error.to_string(), exhausted),
            None => Self::Unreachable(addr, error.to_string()),
        }
    }

    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::NoSuchName => "dns_nxdomain",
            Self::Lookup(_) => "dns_failed",
            Self::LookupTimeout(_) => "dns_timeout",
            Self::Destination(_, why) => why.code(),
            Self::ConnectTimeout(..) => "connect_timeout",
            Self::ConnectRefused(_) => "connect_refused",
            Self::Unreachable(..) => "connect_unreachable",
            Self::Exhausted(..) | Self::LookupExhausted(..) => "proxy_exhausted",
            Self::Full(_) | Self::ShareFull(_) => "proxy_full",
            Self::Proxy(_) => "upstream_proxy_failed",
            Self::ProxyRefused(_) => "upstream_proxy_refused",
            Self::Certificate(bad) => bad.code(),
            Self::Incompatible(Incompatibility::ClientCertificate) => {
                "upstream_tls_client_certificate"
            }
            Self::Handshake(_) | Self::Incompatible(_) => "upstream_tls_handshake",
            Self::HandshakeTimeout(_) => "upstream_tls_timeout",
            Self::ProxyHeader(_) | Self::Closed => "upstream_closed",
            Self::Unprocessed(_) => "upstream_unprocessed",
            Self::Reset(_) => "upstream_reset",
            Self::ResponseTimeout(_) => "upstream_timeout",
            Self::BadResponse(_) => "upstream_bad_answer",
            Self::RequestIdle(_) => "client_idle",
            Self::RequestCut => "client_cut",
        }
    }

    /// Whether the request reached the origin. It did, once a connection was ready for it.
    fn origin_contact(&self) -> OriginContact {
        match self {
            Self::Destination(..)
            | Self::Exhausted(..)
            | Self::LookupExhausted(..)
            | Self::Full(_)
            | Self::ShareFull(_) => OriginContact::NotTried,
            Self::NoSuchName
            | Self::Lookup(_)
            | Self::LookupTimeout(_)
            | Self::ConnectTimeout(..)
            | Self::ConnectRefused(_)
            | Self::Unreachable(..)
            | Self::Proxy(_)
            | Self::ProxyRefused(_)
            | Self::ProxyHeader(_)
            | Self::Certificate(_)
            | Self::Handshake(_)
            | Self::Incompatible(_)
            | Self::HandshakeTimeout(_) => OriginContact::NotReached,
            Self::Closed
            | Self::Unprocessed(_)
            | Self::Reset(_)
            | Self::ResponseTimeout(_)
            | Self::BadResponse(_)
            | Self::RequestIdle(_)
            | Self::RequestCut => OriginContact::Reached,
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Destination(..) => StatusCode::FORBIDDEN,
            Self::LookupTimeout(_)
            | Self::ConnectTimeout(..)
            | Self::HandshakeTimeout(_)
            | Self::ResponseTimeout(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Exhausted(..)
            | Self::LookupExhausted(..)
            | Self::Full(_)
            | Self::ShareFull(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::RequestIdle(_) => StatusCode::REQUEST_TIMEOUT,
            Self::RequestCut => StatusCode::BAD_REQUEST,
            _ => StatusCode::BAD_GATEWAY,
        }
    }

    fn hint(&self) -> &'static str {
        match self {
            Self::NoSuchName => "check the spelling; is there a DNS server that knows the name?",
            Self::Lookup(_) | Self::LookupTimeout(_) => {
                "check the DNS servers of the proxy's host (/etc/resolv.conf)"
            }
            Self::Destination(_, DestinationDenied::OwnListener) => {
                "the name leads back to this proxy"
            }
            Self::Destination(_, DestinationDenied::Port) => {
                "the port decides: 80 and 443 are open, others if a rule or --allow-destination names them"
            }
            Self::Destination(..) => "the address decides, even if a name leads to it",
            Self::ConnectTimeout(..) | Self::Unreachable(..) => {
                "a firewall or a route: try the same from the proxy's host"
            }
            Self::ConnectRefused(_) => "nothing listens there, or a firewall rejects it",
            Self::Exhausted(.., exhausted) | Self::LookupExhausted(_, exhausted) => {
                exhausted.hint()
            }
            Self::RequestIdle(_) => "see --idle-timeout",
            Self::Full(_) | Self::ShareFull(_) => {
                "the proxy has no descriptors for more: raise LimitNOFILE"
            }
            Self::Proxy(_) | Self::ProxyRefused(_) => "see --upstream-proxy, and that proxy's log",
            Self::ProxyHeader(_) => "does the origin accept PROXY headers (--send-proxy)?",
            Self::Certificate(bad) => bad.hint(),
            Self::Incompatible(Incompatibility::ClientCertificate) => {
                "the proxy has none: --passthrough this host, and the client shows its own"
            }
            Self::Incompatible(_) => {
                "the proxy does not support that: --passthrough this host, if the client does"
            }
            Self::Handshake(_) => {
                "the origin speaks no TLS 1.2 or 1.3 on that port, or wants a client certificate"
            }
            _ => "",
        }
    }
}

impl From<FailedAttempt> for Refusal {
    fn from(failed: FailedAttempt) -> Self {
        failed.error.into()
    }
}

impl From<UpstreamError> for Refusal {
    fn from(error: UpstreamError) -> Self {
        Self::new(error.status(), error.code(), error.to_string()).with_hint(error.hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More descriptors are no help against a lack of ports or memory.
    #[test]
    fn only_exhausted_descriptors_get_the_hint_to_raise_their_limit() {
        for (errno, hint) in [
            (Errno::MFILE, "LimitNOFILE"),
            (Errno::NFILE, "LimitNOFILE"),
            (Errno::ADDRNOTAVAIL, "ip_local_port_range"),
            (Errno::NOBUFS, "memory"),
            (Errno::NOMEM, "memory"),
        ] {
            let addr = SocketAddr::from(([192, 0, 2, 1], 443));
            let error = UpstreamError::from_connect(addr, &errno.into());
            assert!(error.hint().contains(hint), "{error}: {}", error.hint());
        }
    }

    /// Also where the lookup or the connection is that of an upstream proxy.
    #[test]
    fn lack_of_descriptors_has_the_same_code_wherever_it_is_noticed() {
        let addr = SocketAddr::from(([192, 0, 2, 1], 443));
        let connect = UpstreamError::from_connect(addr, &Errno::MFILE.into());
        let lookup = UpstreamError::from_lookup(ResolveError::System(Errno::MFILE));
        for error in [connect, lookup] {
            assert_eq!(error.code(), "proxy_exhausted", "{error}");
            assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE, "{error}");
            assert!(error.hint().contains("LimitNOFILE"), "{error}");
            assert_eq!(error.clone().in_proxy().code(), "proxy_exhausted");
            assert_eq!(error.origin_contact(), OriginContact::NotTried, "{error}");
        }
        let other = UpstreamError::from_lookup(ResolveError::System(Errno::CONNREFUSED));
        assert_eq!(other.code(), "dns_failed");
    }
}
