//! A connection of a container runtime, which announces one container.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use peername_sys::ipc::fd_passing;
use peername_sys::seccomp;

use super::container_state::{ContainerState, StateError, parse};

/// A connection whose message is not complete.
#[derive(Debug)]
pub(super) struct Registration {
    socket: UnixStream,
    message: Vec<u8>,
    fds: Vec<OwnedFd>,
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
    /// It was closed without a byte: crun looks first whether something listens.
    Empty,
    /// It can't be used.
    Refused(RegistrationError),
}

/// Why a connection is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegistrationError {
    #[error("its message is longer than {MAX_MESSAGE} bytes")]
    TooLong,
    #[error("it has not sent its message in {} seconds", TIME_LIMIT.as_secs())]
    Late,
    #[error("its message: {0}")]
    State(#[from] StateError),
    #[error("its descriptor is no seccomp listener")]
    NotAListener,
}

impl Registration {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self {
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
            match fd_passing::receive_message(&self.socket, &mut bytes) {
                Ok((0, _)) if self.message.is_empty() => return Progress::Empty,
                Ok((0, _)) => return self.complete(),
                Ok((len, fds)) => {
                    self.message
                        .extend_from_slice(bytes.get(..len).unwrap_or_default());
                    self.fds.extend(fds);
                    if self.message.len() > MAX_MESSAGE {
                        return Progress::Refused(RegistrationError::TooLong);
                    }
                }
                Err(error) if error.source.kind() == ErrorKind::WouldBlock => {
                    // A runtime may leave the connection open.
                    return match parse(&self.message) {
                        Ok(_) => self.complete(),
                        Err(_) => Progress::Incomplete,
                    };
                }
                Err(_) => return self.complete(),
            }
        }
    }

    fn complete(&mut self) -> Progress {
        match self.announced() {
            Ok(announced) => Progress::Complete(announced),
            Err(error) => Progress::Refused(error),
        }
    }

    fn announced(&mut self) -> Result<Announced, RegistrationError> {
        let state = parse(&self.message)?;
        let is_there = state.listener < self.fds.len();
        let calls = is_there.then(|| self.fds.swap_remove(state.listener));
        match calls.filter(|calls| seccomp::is_listener(calls)) {
            Some(calls) => Ok(Announced { state, calls }),
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
const TIME_LIMIT: Duration = Duration::from_secs(5);
