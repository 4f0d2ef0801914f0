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

/// A connection whose message is not complete.
#[derive(Debug)]
pub(super) struct Registration {
    /// The runtime's user.
    pub(super) user: u32,
    socket: UnixStream,
    message: Vec<u8>,
    fds: Vec<ForeignFd>,
    /// When it must be complete.
    pub(super) deadline: Instant,
}

/// A container, and its seccomp listener.
#[derive(Debug)]
pub(super) struct Announced {
    pub(super) state: ContainerState,
    pub(super) calls: OwnedFd,
}

/// What has become of a connection.
#[derive(Debug)]
pub(super) enum Progress {
    /// More has to come.
    Incomplete,
    /// The message is complete.
    Complete(Announced),
    /// It was closed without a byte. crun connects once before it has anything to send.
    Empty,
    /// It can't be used.
    Refused(RegistrationError),
}

/// Why a connection is refused.
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
    #[error("user {user} has {share} unfinished ones already")]
    TooMany { user: u32, share: usize },
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

    /// Receives what has come.
    pub(super) fn receive(&mut self) -> Progress {
        let mut bytes = [0; CHUNK];
        loop {
            match fd_passing::receive_foreign_fds(&self.socket, &mut bytes, MAX_FDS) {
                Ok((0, _)) if self.message.is_empty() => return Progress::Empty,
                Ok((0, _)) => {
                    return match parse(&self.message) {
                        Ok(state) => self.complete(state),
                        Err(error) => Progress::Refused(error.into()),
                    };
                }
                Ok((len, fds)) => {
                    self.message
                        .extend_from_slice(bytes.get(..len).unwrap_or_default());
                    self.fds.extend(fds);
                    if self.message.len() > MAX_MESSAGE || self.fds.len() > MAX_FDS {
                        return Progress::Refused(RegistrationError::TooLong);
                    }
                }
                Err(error) if error.source.kind() == ErrorKind::WouldBlock => {
                    // A runtime may leave the connection open behind its message.
                    let may_be_all = self.message.trim_ascii_end().ends_with(b"}");
                    return match may_be_all.then(|| parse(&self.message)) {
                        Some(Ok(state)) => self.complete(state),
                        Some(Err(_)) | None => Progress::Incomplete,
                    };
                }
                Err(error) => {
                    return match parse(&self.message) {
                        Ok(state) => self.complete(state),
                        Err(_) => Progress::Refused(error.into()),
                    };
                }
            }
        }
    }

    fn complete(&mut self, state: ContainerState) -> Progress {
        match self.announced(state) {
            Ok(announced) => Progress::Complete(announced),
            Err(error) => Progress::Refused(error),
        }
    }

    fn announced(&mut self, state: ContainerState) -> Result<Announced, RegistrationError> {
        if self.fds.is_empty() {
            return Err(RegistrationError::NoDescriptor);
        }
        let is_there = state.listener < self.fds.len();
        let calls = is_there.then(|| self.fds.swap_remove(state.listener));
        match calls.filter(|calls| seccomp::is_listener(calls)) {
            Some(calls) => Ok(Announced {
                state,
                calls: calls.into_owned(),
            }),
            None => Err(RegistrationError::NotAListener),
        }
    }
}

impl AsFd for Registration {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const CHUNK: usize = 16 * 1024;
/// Annotations make it long; Kubernetes allows 256 KiB of them.
const MAX_MESSAGE: usize = 1024 * 1024;
/// The specification has one, and may have others.
const MAX_FDS: usize = 8;
/// A runtime may wait for a processor while a machine starts.
const TIME_LIMIT: Duration = Duration::from_secs(60);
