//! What can go wrong between us and the origin, each with a stable code and what to do about it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http::StatusCode;
use peername_sys::is_exhaustion;

use super::trust::verifier::BadCertificate;
use crate::policy::destination::Refused;
use crate::request::refusal::Refusal;

/// Why the origin gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the name does not exist")]
    NoSuchName,
    #[error("the name can't be resolved: {0}")]
    Lookup(String),
    #[error("the name was not resolved within {0:?}")]
    LookupTimeout(Duration),
    #[error("{0} is not connected to: {1}")]
    Destination(SocketAddr, Refused),
    #[error("{0} did not answer within {1:?}")]
    ConnectTimeout(SocketAddr, Duration),
    #[error("{0} refused the connection")]
    ConnectRefused(SocketAddr),
    #[error("{0} can't be reached: {1}")]
    Unreachable(SocketAddr, String),
    #[error("connect(2) to {0}: {1}")]
    Exhausted(SocketAddr, String),
    #[error("all {0} connections to origins that there may be are in use")]
    Full(usize),
    #[error("the upstream proxy {0}")]
    Parent(String),
    #[error("the upstream proxy answered CONNECT with {0}")]
    ParentRefused(u16),
    #[error("{0}")]
    Certificate(BadCertificate),
    #[error("the TLS handshake failed: {0}")]
    Handshake(String),
    #[error("the TLS handshake took longer than {0:?}")]
    HandshakeTimeout(Duration),
    #[error("the origin closed the connection before it had answered")]
    Closed,
    #[error("the origin did not answer within {0:?}")]
    AnswerTimeout(Duration),
    #[error("the origin's answer is not valid HTTP: {0}")]
    BadAnswer(String),
    #[error("nothing of the request's body came for {0:?}")]
    RequestIdle(Duration),
    #[error("the request ended before its body did")]
    RequestCut,
}

/// A fault, and whom it happened with.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) fault: Fault,
    /// The address that was tried, if it came to that.
    pub(crate) tried: Option<SocketAddr>,
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        let tried = match &fault {
            Fault::ConnectTimeout(addr, _)
            | Fault::ConnectRefused(addr)
            | Fault::Unreachable(addr, _)
            | Fault::Exhausted(addr, _) => Some(*addr),
            _ => None,
        };
        Self { fault, tried }
    }
}

impl Fault {
    /// Of a connection to this address.
    pub(super) fn with(self, addr: SocketAddr) -> Failed {
        let tried = Some(addr);
        Failed { fault: self, tried }
    }

    /// A failed connect(2).
    pub(crate) fn connect(addr: SocketAddr, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::ConnectRefused(addr),
            io::ErrorKind::AddrNotAvailable => Self::Exhausted(addr, error.to_string()),
            _ if is_exhaustion(error) => Self::Exhausted(addr, error.to_string()),
            _ => Self::Unreachable(addr, error.to_string()),
        }
    }

    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::NoSuchName => "dns_nxdomain",
            Self::Lookup(_) => "dns_failed",
            Self::LookupTimeout(_) => "dns_timeout",
            Self::Destination(_, refused) => refused.code(),
            Self::ConnectTimeout(..) => "connect_timeout",
            Self::ConnectRefused(_) => "connect_refused",
            Self::Unreachable(..) => "connect_unreachable",
            Self::Exhausted(..) => "proxy_exhausted",
            Self::Full(_) => "proxy_full",
            Self::Parent(_) => "upstream_proxy_failed",
            Self::ParentRefused(_) => "upstream_proxy_refused",
            Self::Certificate(bad) => bad.code(),
            Self::Handshake(_) => "upstream_tls_handshake",
            Self::HandshakeTimeout(_) => "upstream_tls_timeout",
            Self::Closed => "upstream_closed",
            Self::AnswerTimeout(_) => "upstream_timeout",
            Self::BadAnswer(_) => "upstream_bad_answer",
            Self::RequestIdle(_) => "client_idle",
            Self::RequestCut => "client_cut",
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Destination(..) => StatusCode::FORBIDDEN,
            Self::LookupTimeout(_)
            | Self::ConnectTimeout(..)
            | Self::HandshakeTimeout(_)
            | Self::AnswerTimeout(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Exhausted(..) | Self::Full(_) => StatusCode::SERVICE_UNAVAILABLE,
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
            Self::Destination(_, Refused::OwnListener) => "the name leads back to this proxy",
            Self::Destination(..) => "if it is wanted: --allow-destination CIDR:PORT",
            Self::ConnectTimeout(..) | Self::Unreachable(..) => {
                "a firewall or a route: try the same from the proxy's host"
            }
            Self::ConnectRefused(_) => "nothing listens there, or a firewall rejects it",
            Self::Exhausted(..) => "the proxy ran out of descriptors or ports: raise LimitNOFILE",
            Self::RequestIdle(_) => "see --idle-timeout",
            Self::Full(_) => "the proxy has no descriptors for more: raise LimitNOFILE",
            Self::Parent(_) | Self::ParentRefused(_) => {
                "see --upstream-proxy, and that proxy's log"
            }
            Self::Certificate(bad) => bad.hint(),
            Self::Handshake(_) => {
                "the origin speaks no TLS 1.2 or 1.3 on that port, or wants a client certificate"
            }
            _ => "",
        }
    }
}

impl From<Failed> for Refusal {
    fn from(failed: Failed) -> Self {
        failed.fault.into()
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::new(fault.status(), fault.code(), fault.to_string()).hint(fault.hint())
    }
}
