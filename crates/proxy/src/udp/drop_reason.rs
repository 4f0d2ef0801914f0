//! The reasons why datagrams are dropped.

use std::io::{self, ErrorKind};

use peername_proto::Invalid;
use peername_server::addr::ClaimedSource;
use peername_server::header_error::HeaderError;

use crate::outcome::Failure;

/// A request that is dropped.
#[derive(Debug)]
pub(crate) struct DroppedRequest {
    pub(crate) reason: DropReason,
    /// The client that the request's header names, if that was read.
    pub(crate) client: Option<ClaimedSource>,
}

impl From<DropReason> for DroppedRequest {
    fn from(reason: DropReason) -> Self {
        Self {
            reason,
            client: None,
        }
    }
}

/// The reason why a datagram is dropped. Every drop is counted by its reason.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DropReason {
    /// The datagram is refused for a reason that also applies to connections.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// The header is for TCP.
    #[error("the header is that of a TCP connection")]
    StreamTransport,
    /// The datagram is nothing but the header that opens a flow.
    #[error("a header alone: it opens the flow and is not forwarded")]
    HeaderOnly,
    /// Not expected: the receive buffer takes the longest UDP datagram.
    #[error("longer than the receive buffer")]
    Truncated,
    /// The proxy is draining, and the session would be new.
    #[error("no new sessions: the proxy is stopping")]
    Stopping,
    /// The session was evicted before the datagram could be sent.
    #[error("its session was evicted for another")]
    Evicted,
    /// A reply from another sender than the backend.
    #[error("not from the backend")]
    Stranger,
    /// A reply to a client that only its flow identifies, which belongs to another client by now.
    #[error("its flow (the balancer's address and port) belongs to another client by now")]
    FlowChanged,
    /// A reply without its request's header.
    #[error("a reply without the header of its request")]
    HeaderMissing,
    /// The socket's send buffer is full.
    #[error("send buffer full")]
    SendBufferFull,
    /// With its header the datagram is longer than a datagram may be, or than the path MTU allows.
    #[error("too large with its header")]
    TooLarge,
    /// An ICMP error (port, host or network unreachable), or no route.
    #[error("unreachable: {0}")]
    Unreachable(io::Error),
    /// The session's socket was destroyed from outside.
    #[error("its session's socket was destroyed: {0}")]
    SocketDestroyed(io::Error),
    /// Another error of the kernel, in sending the datagram or about an earlier one.
    #[error("not sent: {0}")]
    Unsendable(io::Error),
}

impl DropReason {
    /// The stable name in metrics and logs.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Refused(failure) => failure.reason(),
            Self::StreamTransport => "stream_transport",
            Self::HeaderOnly => "header_only",
            Self::Truncated => "longer_than_buffer",
            Self::Stopping => "stopping",
            Self::Evicted => "session_evicted",
            Self::Stranger => "stranger",
            Self::FlowChanged => "flow_changed",
            Self::HeaderMissing => "reply_without_header",
            Self::SendBufferFull => "send_buffer_full",
            Self::TooLarge => "too_large",
            Self::Unreachable(_) => "unreachable",
            Self::SocketDestroyed(_) => "socket_destroyed",
            Self::Unsendable(_) => "unsendable",
        }
    }

    /// Whether the drop is warned of, because the reason can concern more than one flow. [`Failure`]s are warned of otherwise.
    pub(crate) fn is_warned(&self) -> bool {
        match self {
            Self::StreamTransport | Self::HeaderMissing | Self::Unsendable(_) => true,
            // It concerns one flow, or is already reported: as an outage of the backend, or at the eviction of the session.
            Self::Refused(_)
            | Self::HeaderOnly
            | Self::Truncated
            | Self::Stopping
            | Self::Evicted
            | Self::Stranger
            | Self::FlowChanged
            | Self::SendBufferFull
            | Self::TooLarge
            | Self::Unreachable(_)
            | Self::SocketDestroyed(_) => false,
        }
    }

    /// Classifies an error of send(2), sendmmsg(2) or recvmmsg(2).
    pub(crate) fn from_kernel(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock => Self::SendBufferFull,
            ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable => Self::Unreachable(error),
            _ if peername_sys::is_too_large(&error) => Self::TooLarge,
            _ if peername_sys::is_destroyed(&error) => Self::SocketDestroyed(error),
            _ => Self::Unsendable(error),
        }
    }
}

impl From<Invalid> for DropReason {
    fn from(invalid: Invalid) -> Self {
        Self::Refused(Failure::Header(HeaderError::Invalid {
            invalid,
            guess: None,
        }))
    }
}
