//! Connections that the mediator makes. On a blocking socket the caller waits, and the mediator does not: it tries again until
//! the connection is made or refused.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use peername_sys::Errno;
use peername_sys::seccomp::{Notification, NotificationListener};
use peername_sys::socket::addressed::{Connected, connect, connect_timeout};
use peername_sys::tcp::socket_info::is_closed;

use super::call_error::CallError;
use super::caller::{Caller, unix_address};

/// Where a connection leads.
#[derive(Debug)]
pub(super) enum Target {
    /// An address of another family.
    Address(Vec<u8>),
    /// An abstract name of the jail's network: the server gets the caller's identity.
    Abstract { address: Vec<u8>, caller: Caller },
    /// The file that a Unix socket is bound to.
    File { file: File, caller: Caller },
}

/// A connection that is being made.
#[derive(Debug)]
pub(super) struct Connecting {
    call: Notification,
    socket: OwnedFd,
    target: Target,
    started: Instant,
    next: Instant,
    /// Of a blocking socket (SO_SNDTIMEO).
    deadline: Option<Instant>,
}

impl Connecting {
    pub(super) fn new(call: Notification, socket: OwnedFd, target: Target) -> Self {
        let now = Instant::now();
        Self {
            call,
            socket,
            target,
            started: now,
            next: now,
            deadline: None,
        }
    }

    /// Tries to connect. Returns the call's result, or `None` if the caller has to wait.
    pub(super) fn attempt(&mut self) -> Option<Result<(), CallError>> {
        match self.connect() {
            Ok(Connected::Blocks) => {}
            Ok(Connected::Now(result)) => return Some(result.map_err(CallError::from)),
            Err(error) => return Some(Err(error)),
        }
        let limit = connect_timeout(&self.socket);
        self.deadline = limit.map(|limit| self.started + limit);
        self.next = Instant::now() + MIN_INTERVAL;
        None
    }

    /// The address at which nothing listens, if this was the outcome of the first attempt. On loopback, where every connection
    /// of the jail is, the answer comes while the call holds the socket.
    pub(super) fn refused(&self, outcome: &Result<(), CallError>) -> Option<(&OwnedFd, &[u8])> {
        let Target::Address(address) = &self.target else {
            return None;
        };
        let Err(CallError::Call(error)) = outcome else {
            return None;
        };
        let errno = error.raw_os_error();
        let is = |expected: Errno| errno == Some(expected.raw_os_error());
        let is_refused = is(Errno::CONNREFUSED) || is(Errno::INPROGRESS) && is_closed(&self.socket);
        is_refused.then_some((&self.socket, address))
    }

    /// Tries again; `None` if the caller still has to wait.
    fn retry(&mut self) -> Option<Result<(), CallError>> {
        match self.connect() {
            Ok(Connected::Blocks) => {}
            // By an earlier attempt.
            Ok(Connected::Now(Err(error))) if is_connected(&error) => return Some(Ok(())),
            Ok(Connected::Now(result)) => return Some(result.map_err(CallError::from)),
            Err(error) => return Some(Err(error)),
        }
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            // connect(2): the connection of TCP goes on.
            let over = match self.target {
                Target::Address(_) => Errno::INPROGRESS,
                Target::Abstract { .. } | Target::File { .. } => Errno::AGAIN,
            };
            return Some(Err(over.into()));
        }
        let waited = now - self.started;
        if Caller::has_signal(&self.call) {
            return Some(Err(Errno::INTR.into()));
        }
        self.next = now + (waited / 8).clamp(MIN_INTERVAL, MAX_INTERVAL);
        None
    }

    fn connect(&self) -> Result<Connected, CallError> {
        match &self.target {
            Target::Address(address) => Ok(connect(&self.socket, address)?),
            Target::Abstract { address, caller } => caller.act(|| connect(&self.socket, address)),
            Target::File { file, caller } => {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                let address = unix_address(Path::new(&path))?;
                caller.act(|| connect(&self.socket, &address))
            }
        }
    }
}

/// Connections whose callers wait.
#[derive(Debug, Default)]
pub(super) struct PendingConnects(Vec<Connecting>);

impl PendingConnects {
    pub(super) fn add(&mut self, connecting: Connecting) {
        self.0.push(connecting);
    }

    /// The time until the next attempt; `None` if nothing waits.
    pub(super) fn next_attempt(&self) -> Option<Duration> {
        let next = self.0.iter().map(|connecting| connecting.next).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Makes the attempts that are due, and answers those that are over.
    ///
    /// # Errors
    ///
    /// The mediator can't go on.
    pub(super) fn retry(&mut self, calls: &NotificationListener) -> peername_sys::Result<()> {
        let now = Instant::now();
        let mut outcome = Ok(());
        self.0.retain_mut(|connecting| {
            if connecting.next > now {
                return true;
            }
            let id = connecting.call.id;
            if !calls.is_pending(id) {
                return false;
            }
            match connecting.retry() {
                None => return true,
                Some(Ok(())) => calls.succeed(id),
                Some(Err(CallError::Call(error))) => calls.fail(id, &error),
                Some(Err(CallError::Mediator(error))) => outcome = Err(error),
            }
            false
        });
        outcome
    }
}

fn is_connected(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ISCONN.raw_os_error())
}

const MIN_INTERVAL: Duration = Duration::from_millis(1);
const MAX_INTERVAL: Duration = Duration::from_millis(50);
