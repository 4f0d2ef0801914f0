//! How a connection ended, and whose fault it was.

use std::net::SocketAddr;
use std::time::Duration;

use peername_relay::{End, Side};
use peername_server::header_error::HeaderError;
use peername_sys::SyscallError;

use crate::policy::destination::DestinationRefusal;
use crate::policy::source::SourceRefusal;
use peername_server::addr::Target;

/// The one value that log line, counter and test all read.
#[derive(Debug)]
pub enum Outcome {
    /// It was carried to its end.
    Relayed(End),
    /// A UDP session, of which the peers never say that it is over.
    Over(Over),
    /// It was still open when the proxy stopped.
    Cut,
    /// It was refused or failed before a byte was carried.
    Failed(Failure),
}

/// Why a UDP session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Over {
    /// Nothing moved for `--close-after`.
    Idle,
    /// The backend never answered.
    Unanswered,
    /// Its place was needed for another.
    Evicted,
    /// Somebody on this host has destroyed its socket.
    SocketDestroyed,
    /// epoll_ctl(2) would not watch its socket.
    Unwatched,
    /// The proxy stopped.
    Stopped,
}

/// Whose doing an end was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Nobody's.
    None,
    /// The client's or the balancer's.
    Downstream,
    /// The backend's.
    Upstream,
    /// Refused by a rule that the operator set.
    Policy,
    /// Ours, or this host's.
    Local,
}

/// Why a connection was not carried.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The peer may not send headers.
    #[error(
        "this peer is not trusted to send headers; add it to --trust if it is a balancer of yours"
    )]
    Untrusted,
    /// Its listener serves nobody any more: a reload has just closed it.
    #[error("its listener was closed by a reload")]
    NoService,
    /// There is no header to work with, or none yet and too many connections wait for theirs.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The claimed source is refused.
    #[error("the header's source is {0}")]
    Source(#[from] SourceRefusal),
    /// The destination in the header is refused.
    #[error("the header's destination, {asked}, is {refusal}")]
    Destination {
        /// Where the client was to go.
        asked: SocketAddr,
        /// Why it may not.
        refusal: DestinationRefusal,
    },
    /// Replies would not come back to this host.
    #[error("replies to spoofed connections do not come back to this host; see `peername doctor`")]
    ReplyPath,
    /// The header for the backend can't be written.
    #[error("the header to send: {0}")]
    OutboundHeader(peername_proto::WriteError),
    /// A system call on the way to the backend failed here.
    #[error("{0}")]
    Local(SyscallError),
    /// The client's address and port are taken: by a live connection to the backend (connect(2) says so), or by another
    /// program's socket (bind(2)).
    #[error("the client's address and port are in use on this host: {0}")]
    PortTaken(SyscallError),
    /// The backend refused or can't be reached.
    #[error("the backend {upstream} does not accept: {error}")]
    Connect {
        /// The backend.
        upstream: Target,
        /// What connect(2) or the first send(2) said.
        error: std::io::Error,
    },
    /// The backend did not answer in time.
    #[error("the backend {upstream} did not answer within {after:?}")]
    ConnectTimeout {
        /// The backend.
        upstream: Target,
        /// The time allowed.
        after: Duration,
    },
    /// The kernel chose another source than the one asked for.
    #[error("the connection would have come from {got} instead of {wanted}")]
    SourceRewritten {
        /// The client's.
        wanted: SocketAddr,
        /// The kernel's choice.
        got: SocketAddr,
    },
}

impl Failure {
    /// A stable name for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Untrusted => "untrusted_peer",
            Self::NoService => "listener_closed",
            Self::Header(error) => error.reason(),
            Self::Source(refusal) => refusal.reason(),
            Self::Destination { refusal, .. } => refusal.reason(),
            Self::ReplyPath => "reply_path",
            Self::OutboundHeader(_) => "header_unwritable",
            Self::Local(_) => "local_error",
            Self::PortTaken(_) => "port_taken",
            Self::Connect { .. } => "connect_refused",
            Self::ConnectTimeout { .. } => "connect_timeout",
            Self::SourceRewritten { .. } => "source_rewritten",
        }
    }

    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Untrusted
            | Self::NoService
            | Self::Header(HeaderError::TooManyPending)
            | Self::Source(_)
            | Self::Destination { .. } => Fault::Policy,
            Self::Header(_) | Self::PortTaken(_) => Fault::Downstream,
            Self::Connect { .. } | Self::ConnectTimeout { .. } => Fault::Upstream,
            Self::ReplyPath
            | Self::OutboundHeader(_)
            | Self::Local(_)
            | Self::SourceRewritten { .. } => Fault::Local,
        }
    }
}

impl Outcome {
    /// A stable name for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Relayed(End::Finished(_)) => "finished",
            Self::Relayed(End::Reset(_)) => "reset",
            Self::Relayed(End::Idle) => "idle",
            Self::Relayed(End::Lost) => "lost",
            Self::Over(Over::Idle) => "idle",
            Self::Over(Over::Unanswered) => "unanswered",
            Self::Over(Over::Evicted) => "evicted",
            Self::Over(Over::SocketDestroyed) => "socket_destroyed",
            Self::Over(Over::Unwatched) => "unwatched",
            Self::Over(Over::Stopped) => "stopped",
            Self::Cut => "cut",
            Self::Failed(failure) => failure.reason(),
        }
    }

    /// Who ended it.
    pub fn ended_by(&self) -> Option<&'static str> {
        match self {
            Self::Relayed(End::Finished(side) | End::Reset(side)) => Some(match side {
                Side::Downstream => "downstream",
                Side::Upstream => "upstream",
            }),
            Self::Relayed(End::Idle | End::Lost) | Self::Over(_) | Self::Cut => Some("proxy"),
            Self::Failed(_) => None,
        }
    }

    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Failed(failure) => failure.fault(),
            Self::Relayed(End::Finished(_) | End::Idle) => Fault::None,
            Self::Relayed(End::Reset(Side::Downstream)) => Fault::Downstream,
            Self::Relayed(End::Reset(Side::Upstream)) => Fault::Upstream,
            Self::Relayed(End::Lost) => Fault::Local,
            Self::Over(Over::Idle | Over::Stopped) => Fault::None,
            Self::Over(Over::Unanswered) => Fault::Upstream,
            Self::Over(Over::Evicted) => Fault::Policy,
            Self::Over(Over::SocketDestroyed | Over::Unwatched) => Fault::Local,
            Self::Cut => Fault::Local,
        }
    }

    /// What went wrong, in words.
    pub fn error(&self) -> Option<String> {
        match self {
            Self::Failed(failure) => Some(failure.to_string()),
            Self::Relayed(End::Lost) => Some(LOST.to_owned()),
            Self::Over(Over::SocketDestroyed) => Some(DESTROYED.to_owned()),
            Self::Over(Over::Unwatched) => Some(UNWATCHED.to_owned()),
            Self::Relayed(_) | Self::Over(_) | Self::Cut => None,
        }
    }
}

impl Fault {
    /// As it stands in the log.
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

const LOST: &str = "epoll_ctl(2): the sockets could not be watched any more, for want of memory or of watches \
    (fs.epoll.max_user_watches)";
const DESTROYED: &str =
    "its socket was destroyed from outside (`ss --kill`); the next datagram begins another";
const UNWATCHED: &str = "epoll_ctl(2): its socket could not be watched, for want of memory or of watches \
    (fs.epoll.max_user_watches)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_here_is_no_peers_fault() {
        let lost = Outcome::Relayed(End::Lost);
        assert_eq!((lost.label(), lost.ended_by()), ("lost", Some("proxy")));
        assert_eq!(lost.fault(), Fault::Local);
        assert!(lost.error().is_some_and(|why| why.contains("epoll_ctl(2)")));
    }
}
