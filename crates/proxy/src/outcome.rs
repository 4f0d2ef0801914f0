//! The outcome of a connection or session: how it ended, and which side was at fault.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use peername_proto::SourceRefusal;
use peername_relay::{End, Side};
use peername_server::access::clients::ClientRefusal;
use peername_server::addr::Target;
use peername_server::header_error::HeaderError;
use peername_sys::SyscallError;

use crate::backend::Backend;
use crate::nat_probe::LIST_RULES;
use crate::policy::destination::DestinationRefusal;
use crate::routes::add_advice;

/// The end of a connection or session. The log line, the counters and the tests all read this value.
#[derive(Debug)]
pub enum Outcome {
    /// The connection was relayed until its end.
    Relayed(End),
    /// The balancer reset a connection of its own without sending a byte after the header, as health checks do.
    HealthCheck,
    /// The proxy ended a UDP session: its peers can't signal the end of one.
    SessionEnded(SessionEnd),
    /// The connection was still open when the proxy stopped.
    Cut,
    /// The connection was closed over the admin endpoint.
    ClosedByAdmin,
    /// A list of clients has changed, and denies the client now.
    AccessRevoked,
    /// The connection was refused or failed before a byte was relayed.
    Failed(Failure),
}

/// The reason why a UDP session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionEnd {
    /// Idle timeout: no datagram in either direction for `--close-after`.
    Idle,
    /// Idle timeout, and the backend has never answered.
    Unanswered,
    /// The session was evicted for another one.
    Evicted(EvictionReason),
    /// Another process has destroyed the session's socket (`ss --kill`).
    SocketDestroyed,
    /// epoll_ctl(2) could not register the session's socket.
    Unwatched,
    /// The proxy stopped, or a reload removed the session's listener.
    Stopped,
    /// A list of clients has changed, and denies the client now.
    AccessRevoked,
}

/// The limit that was reached when a session was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EvictionReason {
    /// `--max-sessions`.
    SessionLimit,
    /// `--max-sessions-per-balancer`.
    BalancerLimit,
    /// File descriptors of this process or host.
    Descriptors,
    /// Ports of this host towards the backend.
    Ports,
    /// Memory of the kernel for sockets.
    Memory,
}

/// The side that is at fault for an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// None: a regular end.
    None,
    /// The client or the balancer.
    Downstream,
    /// The backend.
    Upstream,
    /// A rule or limit that the operator has set.
    Policy,
    /// This process or this host.
    Local,
}

/// The reason why a connection, session or datagram was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The peer is not trusted to send headers.
    #[error(
        "this peer is not trusted to send headers; add it to --trust if it is a balancer of yours"
    )]
    Untrusted,
    /// The listener has no service any more: a reload has just closed it.
    #[error("its listener was closed by a reload")]
    NoService,
    /// The header is missing, invalid or late, or too many connections wait for theirs.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The source policy refuses the claimed source.
    #[error("the header's source is {0}")]
    Source(#[from] SourceRefusal),
    /// The client may not connect: a list of clients denies it, or its header lacks a required TLV.
    #[error(transparent)]
    Client(#[from] ClientRefusal),
    /// The client has its share of all connections already.
    #[error(
        "its open connections are more than twice as many as the free file descriptors allow; raise LimitNOFILE or `ulimit -n` if this is the normal load"
    )]
    TooManyConnections,
    /// The destination policy refuses the destination in the header.
    #[error("the header's destination, {destination}, is {refusal}")]
    Destination {
        /// The destination in the header.
        destination: SocketAddr,
        /// The reason why the destination is refused.
        refusal: DestinationRefusal,
    },
    /// No target is configured for this client's address family.
    #[error(
        "there is no backend for {} clients; name one with --target or, over TCP, start the server by `peername exec`, which \
         serves both families (docs/proxy.md)",
        if client.is_ipv4() { "IPv4" } else { "IPv6" }
    )]
    NoTarget {
        /// The client.
        client: IpAddr,
    },
    /// Replies would not come back to this host.
    #[error(
        "replies of {backend} to clients do not come back to this host; run {}, or let the proxy do it with \
         `--setup-routes`",
        add_advice(*backend, *mark)
    )]
    ReplyPath {
        /// The backend.
        backend: Backend,
        /// The mark by which replies of a backend on another host are recognized.
        mark: Option<NonZeroU32>,
    },
    /// The header for the backend can't be written.
    #[error("the header to send: {0}")]
    OutboundHeader(peername_proto::WriteError),
    /// A system call failed on this host before the connection to the backend was established.
    #[error("{0}")]
    Local(SyscallError),
    /// No port of this host is left to connect from, or no address of this host leads to the backend.
    #[error(
        "no port is left to connect to {upstream} from (widen net.ipv4.ip_local_port_range), or no address of this host leads there: \
         {error}"
    )]
    NoPort {
        /// The backend.
        upstream: Target,
        /// The error of connect(2).
        error: SyscallError,
    },
    /// The client's address and port are taken: by an open connection to the backend (connect(2)), or by another program's
    /// socket (bind(2)).
    #[error("the client's address and port are in use on this host: {0}")]
    PortTaken(SyscallError),
    /// The backend refused the connection or can't be reached.
    #[error("the backend {upstream} does not accept: {error}")]
    Connect {
        /// The backend.
        upstream: Target,
        /// The error of connect(2) or the first send(2).
        error: io::Error,
    },
    /// The connect timeout expired before the connection was established.
    #[error("the backend {upstream} did not answer within {after:?}")]
    ConnectTimeout {
        /// The backend.
        upstream: Target,
        /// The timeout.
        after: Duration,
    },
    /// The connect timeout expired while the outbound header was written, on an established connection.
    #[error("the backend {upstream} did not take the outbound header within {after:?}")]
    HeaderTimeout {
        /// The backend.
        upstream: Target,
        /// The timeout.
        after: Duration,
    },
    /// The kernel chose another source than the requested one.
    #[error("the connection would have come from {got} instead of {wanted}")]
    SourceRewritten {
        /// The client's address.
        wanted: SocketAddr,
        /// The address that the kernel chose.
        got: SocketAddr,
    },
    /// NAT rules of this host replace the client's address on the way to the backend.
    #[error(
        "the backend {target} would see another address than {client}: NAT rules of this host apply to it; exempt \
         connections to {target} from the rule that masquerades {ip} ({LIST_RULES}); for a backend on loopback \
         `--setup-routes` does it",
        ip = client.ip()
    )]
    SourceTranslated {
        /// The client's address.
        client: SocketAddr,
        /// The backend.
        target: SocketAddr,
    },
}

impl Failure {
    /// The backend does not accept, by the error of connect(2) or of sending the first bytes.
    pub(crate) fn refused(upstream: Target, error: io::Error) -> Self {
        Self::Connect { upstream, error }
    }

    /// Classifies an error of connect(2) on a TCP socket whose port the kernel chooses: no port was left, or the backend's host
    /// or the network refused.
    pub(crate) fn from_tcp_connect(upstream: Target, error: SyscallError) -> Self {
        if error.is_address_unavailable() {
            Self::NoPort { upstream, error }
        } else {
            Self::refused(upstream, error.source)
        }
    }

    /// Classifies an error of connect(2) on a UDP socket. [`Failure::Local`] where no port was left: the caller may then evict
    /// a session for its port.
    pub(crate) fn from_udp_connect(upstream: Target, error: SyscallError) -> Self {
        if error.is_udp_port_exhaustion() {
            Self::Local(error)
        } else {
            Self::refused(upstream, error.source)
        }
    }

    /// The stable reason code for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Untrusted => "untrusted_peer",
            Self::NoService => "listener_closed",
            Self::Header(error) => error.reason(),
            Self::Source(refusal) => refusal.reason(),
            Self::Client(refusal) => refusal.reason(),
            Self::TooManyConnections => "too_many_connections",
            Self::Destination { refusal, .. } => refusal.reason(),
            Self::NoTarget { .. } => "no_target",
            Self::ReplyPath { .. } => "reply_path",
            Self::OutboundHeader(_) => "header_unwritable",
            Self::Local(_) | Self::NoPort { .. } => "local_error",
            Self::PortTaken(_) => "port_taken",
            Self::Connect { .. } => "connect_refused",
            Self::ConnectTimeout { .. } | Self::HeaderTimeout { .. } => "connect_timeout",
            Self::SourceRewritten { .. } => "source_rewritten",
            Self::SourceTranslated { .. } => "source_translated",
        }
    }

    /// The side at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Untrusted
            | Self::NoService
            | Self::Header(HeaderError::TooManyPending)
            | Self::Source(_)
            | Self::Client(_)
            | Self::TooManyConnections
            | Self::Destination { .. }
            | Self::NoTarget { .. } => Fault::Policy,
            Self::Header(_) | Self::PortTaken(_) => Fault::Downstream,
            Self::Connect { .. } | Self::ConnectTimeout { .. } | Self::HeaderTimeout { .. } => {
                Fault::Upstream
            }
            Self::ReplyPath { .. }
            | Self::OutboundHeader(_)
            | Self::Local(_)
            | Self::NoPort { .. }
            | Self::SourceRewritten { .. }
            | Self::SourceTranslated { .. } => Fault::Local,
        }
    }
}

impl Outcome {
    /// The stable reason code for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Relayed(End::Finished(_)) => "finished",
            Self::Relayed(End::Reset(_)) => "reset",
            Self::Relayed(End::Idle) => "idle",
            Self::HealthCheck => "health_check",
            Self::SessionEnded(SessionEnd::Idle) => "idle",
            Self::SessionEnded(SessionEnd::Unanswered) => "unanswered",
            Self::SessionEnded(SessionEnd::Evicted(_)) => "evicted",
            Self::SessionEnded(SessionEnd::SocketDestroyed) => "socket_destroyed",
            Self::SessionEnded(SessionEnd::Unwatched) => "unwatched",
            Self::SessionEnded(SessionEnd::Stopped) => "stopped",
            Self::SessionEnded(SessionEnd::AccessRevoked) | Self::AccessRevoked => "access_revoked",
            Self::Cut => "cut",
            Self::ClosedByAdmin => "closed_by_admin",
            Self::Failed(failure) => failure.reason(),
        }
    }

    /// The side that ended the connection or session.
    pub fn ended_by(&self) -> Option<&'static str> {
        match self {
            Self::Relayed(End::Finished(side) | End::Reset(side)) => Some(match side {
                Side::Downstream => "downstream",
                Side::Upstream => "upstream",
            }),
            Self::HealthCheck => Some("downstream"),
            Self::Relayed(End::Idle)
            | Self::SessionEnded(_)
            | Self::Cut
            | Self::ClosedByAdmin
            | Self::AccessRevoked => Some("proxy"),
            Self::Failed(_) => None,
        }
    }

    /// The side at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Failed(failure) => failure.fault(),
            Self::Relayed(End::Finished(_) | End::Idle) | Self::HealthCheck => Fault::None,
            Self::Relayed(End::Reset(Side::Downstream)) => Fault::Downstream,
            Self::Relayed(End::Reset(Side::Upstream)) => Fault::Upstream,
            Self::SessionEnded(SessionEnd::Idle | SessionEnd::Stopped) => Fault::None,
            Self::SessionEnded(SessionEnd::Unanswered) => Fault::Upstream,
            Self::SessionEnded(SessionEnd::Evicted(_) | SessionEnd::AccessRevoked) => Fault::Policy,
            Self::SessionEnded(SessionEnd::SocketDestroyed | SessionEnd::Unwatched) => Fault::Local,
            Self::Cut => Fault::Local,
            Self::ClosedByAdmin | Self::AccessRevoked => Fault::Policy,
        }
    }

    /// The error text, with what to do where the operator can do something; `None` for an end that is no error.
    pub fn error(&self) -> Option<String> {
        match self {
            Self::Failed(failure) => Some(failure.to_string()),
            Self::SessionEnded(SessionEnd::Evicted(reason)) => Some(reason.advice().to_owned()),
            Self::SessionEnded(SessionEnd::SocketDestroyed) => Some(DESTROYED.to_owned()),
            Self::SessionEnded(SessionEnd::Unwatched) => Some(UNWATCHED.to_owned()),
            Self::Relayed(_)
            | Self::HealthCheck
            | Self::SessionEnded(_)
            | Self::Cut
            | Self::ClosedByAdmin
            | Self::AccessRevoked => None,
        }
    }
}

impl EvictionReason {
    /// The reason for which a session's socket could not be opened: `error` reports exhausted descriptors, ports or memory.
    pub(crate) fn from_socket_error(error: &SyscallError) -> Self {
        if error.is_udp_port_exhaustion() {
            Self::Ports
        } else if error.is_out_of_descriptors() {
            Self::Descriptors
        } else {
            Self::Memory
        }
    }

    /// The name in metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::SessionLimit => "session_limit",
            Self::BalancerLimit => "balancer_limit",
            Self::Descriptors => "descriptors",
            Self::Ports => "ports",
            Self::Memory => "memory",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::SessionLimit => {
                "each new session evicts an open one; raise --max-sessions (and LimitNOFILE, if that is lower), or lower --close-after"
            }
            Self::BalancerLimit => {
                "each new session of this peer evicts one of its own; raise --max-sessions-per-balancer, or lower --close-after; one peer gets at most two thirds of --max-sessions, and of the sessions that LimitNOFILE leaves"
            }
            Self::Descriptors => {
                "no file descriptor is left for a new session; raise LimitNOFILE or `ulimit -n`, or lower --max-sessions"
            }
            Self::Ports => {
                "no port is left to the backend; widen net.ipv4.ip_local_port_range, or lower --max-sessions"
            }
            Self::Memory => {
                "the kernel has no memory left for a new session's socket; lower --max-sessions"
            }
        }
    }
}

impl Fault {
    /// The name in the log.
    pub fn label(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Downstream => "downstream",
            Self::Upstream => "upstream",
            Self::Policy => "policy",
            Self::Local => "local",
        }
    }
}

const DESTROYED: &str =
    "its socket was destroyed from outside (`ss --kill`); the next datagram starts another session";
const UNWATCHED: &str = "epoll_ctl(2): its socket could not be watched, for lack of memory or of watches \
    (fs.epoll.max_user_watches)";

#[cfg(test)]
mod tests {
    use peername_sys::Errno;

    use super::*;

    #[test]
    fn eviction_for_a_socket_names_what_is_exhausted() {
        for (errno, expected) in [
            (Errno::MFILE, EvictionReason::Descriptors),
            (Errno::NFILE, EvictionReason::Descriptors),
            (Errno::AGAIN, EvictionReason::Ports),
            (Errno::NOBUFS, EvictionReason::Memory),
            (Errno::NOMEM, EvictionReason::Memory),
        ] {
            let error = SyscallError {
                call: "socket(2)",
                source: errno.into(),
            };
            assert_eq!(EvictionReason::from_socket_error(&error), expected);
        }
    }
}
