//! Why a datagram goes no further.

use std::io::{self, ErrorKind};

use peername_proto::Invalid;

use peername_server::header_error::HeaderError;

use crate::outcome::Failure;

/// What a datagram can die of. None dies uncounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DropReason {
    /// As a connection would have.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// Its header says that the client speaks TCP.
    #[error("the header is that of a TCP connection")]
    StreamTransport,
    /// It was a header and nothing else, where that opens a flow.
    #[error("a header alone: it opens the flow and is not forwarded")]
    HeaderOnly,
    /// It was longer than any UDP datagram.
    #[error("longer than the buffer")]
    Truncated,
    /// The proxy is stopping and the session would have been new.
    #[error("no new sessions: the proxy is stopping")]
    Stopping,
    /// Its session's place was taken by another before it could be sent.
    #[error("its session had to make room for another")]
    Evicted,
    /// It did not come from the backend.
    #[error("not from the backend")]
    Stranger,
    /// The balancer's address and port, by which the client was known, speak for another by now.
    #[error("the way to its client leads to another client by now")]
    FlowChanged,
    /// A reply without the header of its request.
    #[error("a reply without the header of its request")]
    HeaderMissing,
    /// The socket's send buffer is full.
    #[error("send buffer full")]
    SendBufferFull,
    /// With its header it is longer than a datagram may be, or than the path takes.
    #[error("too large with its header")]
    TooLarge,
    /// The receiver's host said that nobody listens, or that there is no way to it.
    #[error("unreachable: {0}")]
    Unreachable(io::Error),
    /// Somebody has destroyed its session's socket.
    #[error("its session's socket was destroyed: {0}")]
    SocketDestroyed(io::Error),
    /// The kernel refused it.
    #[error("sendmmsg(2): {0}")]
    Unsendable(io::Error),
}

impl DropReason {
    /// A stable name for metrics and logs.
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

    /// What a refusal of sendmmsg(2) means.
    pub(crate) fn by_kernel(error: io::Error) -> Self {
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
