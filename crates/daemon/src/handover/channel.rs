//! A channel of messages with descriptors, between two processes: JSON in a SOCK_SEQPACKET socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use peername_sys::ipc::fd_passing;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// One end of a channel.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

/// The reason why a message was not sent or received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    /// The other process has closed its end, or has exited.
    #[error("the other process has ended")]
    Closed,
    /// The time limit has expired.
    #[error("the time limit is over")]
    TimedOut,
    /// The message of this process can't be written as JSON.
    #[error("the message to the other process: {0}")]
    Serialize(serde_json::Error),
    /// A message that this version does not know.
    #[error("the other process speaks another version: {0}")]
    Unknown(serde_json::Error),
    /// A system call failed.
    #[error(transparent)]
    Syscall(#[from] peername_sys::SyscallError),
}

impl Channel {
    /// Opens a channel; returns this process's end, and the other's.
    pub(crate) fn pair() -> Result<(Self, OwnedFd), ChannelError> {
        let (ours, theirs) = fd_passing::seqpacket_pair()?;
        Ok((Self(ours), theirs))
    }

    /// Sets how long each call may block.
    pub(crate) fn set_time_limit(&self, limit: Duration) -> Result<(), ChannelError> {
        // 0 would be no limit.
        let limit = limit.max(Duration::from_millis(1));
        Ok(fd_passing::set_time_limit(&self.0, limit)?)
    }

    /// Another handle of this end.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Makes calls of [`Self::receive`] return [`ChannelError::Closed`], also those under way.
    pub(crate) fn interrupt(&self) {
        // It can't fail: the channel is connected.
        let _ = fd_passing::shutdown_read(&self.0);
    }

    pub(crate) fn send(
        &self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let text = serde_json::to_vec(message).map_err(ChannelError::Serialize)?;
        fd_passing::send_message(&self.0, &text, fds).map_err(classify)
    }

    pub(crate) fn receive<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), ChannelError> {
        let mut buffer = vec![0; MAX_MESSAGE];
        let (len, fds) = fd_passing::receive_message(&self.0, &mut buffer).map_err(classify)?;
        if len == 0 {
            return Err(ChannelError::Closed);
        }
        let text = buffer.get(..len).unwrap_or_default();
        let message = serde_json::from_slice(text).map_err(ChannelError::Unknown)?;
        Ok((message, fds))
    }
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn classify(failed: peername_sys::SyscallError) -> ChannelError {
    match failed.source.kind() {
        io::ErrorKind::WouldBlock => ChannelError::TimedOut,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ChannelError::Closed,
        _ => failed.into(),
    }
}

/// Above the kernel's default for a send buffer, which limits the messages of the other process.
const MAX_MESSAGE: usize = 256 << 10;
