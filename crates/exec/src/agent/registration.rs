//! A connection of a container runtime, which announces one container.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use peername_sys::SyscallError;
use peername_sys::ipc::fd_passing;
use peername_sys::ipc::foreign_fd::ForeignFd;
use peername_sys::seccomp;

use super::container_state::{ContainerState, StateError, parse};

/// A runtime's connection whose message is not complete yet.
#[derive(Debug)]
pub(super) struct Registration {
    /// The runtime's user.
    pub(super) user: u32,
    socket: UnixStream,
    message: Vec<u8>,
    fds: Vec<ForeignFd>,
    /// When the message must be complete.
    pub(super) deadline: Instant,
}

/// The progress of a registration.
#[derive(Debug)]
pub(super) enum RegistrationProgress {
    /// The message is incomplete.
    Incomplete,
    /// The message is complete: the container's state, and its seccomp listener.
    Complete(ContainerState, OwnedFd),
    /// The runtime has closed the connection without a byte. crun connects once before it has anything to send.
    Empty,
    /// The message can't be used.
    Refused(RegistrationError),
}

/// A reason to refuse a registration.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegistrationError {
    #[error("its message has more than {MAX_MESSAGE} bytes, or more than {MAX_FDS} descriptors")]
    TooLong,
    #[error("it has not sent its message in {} seconds", TIME_LIMIT.as_secs())]
    Late,
    #[error("its message: {0}")]
    State(#[from] StateError),
    #[error("its message: {0}")]
    Receive(#[from] SyscallError),
    #[error(
        "no descriptor came with its message: it sent none, or this process can open no more files (LimitNOFILE)"
    )]
    NoDescriptor,
    #[error("its descriptor is no seccomp listener")]
    NotAListener,
    #[error("user {user} has {share} unfinished registrations already")]
    TooMany { user: u32, share: usize },
    #[error("user {user} has {share} containers already")]
    TooManyContainers { user: u32, share: usize },
    #[error(
        "container {id}: no policy has the name {policy:?} (listenerMetadata of its seccomp profile)"
    )]
    NoPolicy { id: String, policy: String },
    #[error("container {id}: {source}")]
    Container { id: String, source: SyscallError },
}

impl Registration {
    pub(super) fn new(user: u32, socket: UnixStream) -> Self {
        Self {
            user,
            socket,
            message: Vec::new(),
            fds: Vec::new(),
            deadline: Instant::now() + TIME_LIMIT,
        }
    }

    /// Receives as much of the message as has arrived.
    pub(super) fn receive(&mut self) -> RegistrationProgress {
        let mut bytes = [0; CHUNK];
        loop {
            match fd_passing::receive_foreign_fds(&self.socket, &mut bytes, MAX_FDS) {
                Ok((0, _)) if self.message.is_empty() => return RegistrationProgress::Empty,
                Ok((0, _)) => {
                    return match parse(&self.message) {
                        Ok(state) => self.complete(state),
                        Err(error) => RegistrationProgress::Refused(error.into()),
                    };
                }
                Ok((len, fds)) => {
                    self.message
                        .extend_from_slice(bytes.get(..len).unwrap_or_default());
                    self.fds.extend(fds);
                    if self.message.len() > MAX_MESSAGE || self.fds.len() > MAX_FDS {
                        return RegistrationProgress::Refused(RegistrationError::TooLong);
                    }
                }
                Err(error) if error.source.kind() == ErrorKind::WouldBlock => {
                    // A runtime may leave the connection open after its message.
                    let may_be_complete = self.message.trim_ascii_end().ends_with(b"}");
                    return match may_be_complete.then(|| parse(&self.message)) {
                        Some(Ok(state)) => self.complete(state),
                        Some(Err(_)) | None => RegistrationProgress::Incomplete,
                    };
                }
                Err(error) => {
                    return match parse(&self.message) {
                        Ok(state) => self.complete(state),
                        Err(_) => RegistrationProgress::Refused(error.into()),
                    };
                }
            }
        }
    }

    fn complete(&mut self, state: ContainerState) -> RegistrationProgress {
        match self.take_listener(state.listener) {
            Ok(listener) => RegistrationProgress::Complete(state, listener),
            Err(error) => RegistrationProgress::Refused(error),
        }
    }

    /// Takes the seccomp listener, which is at `position` among the received descriptors.
    fn take_listener(&mut self, position: usize) -> Result<OwnedFd, RegistrationError> {
        if self.fds.is_empty() {
            return Err(RegistrationError::NoDescriptor);
        }
        let is_listener = self.fds.get(position).is_some_and(seccomp::is_listener);
        if !is_listener {
            return Err(RegistrationError::NotAListener);
        }
        Ok(self.fds.swap_remove(position).into_owned())
    }
}

impl AsFd for Registration {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The size of the receive buffer.
const CHUNK: usize = 16 * 1024;
/// The maximum size of a message. Annotations make it long; Kubernetes allows 256 KiB of them.
const MAX_MESSAGE: usize = 1024 * 1024;
/// The maximum number of descriptors. The specification has one, and may get others.
const MAX_FDS: usize = 8;
/// The time for a message. A runtime may have to wait for a processor while a machine starts.
const TIME_LIMIT: Duration = Duration::from_secs(60);
