//! Connections that the mediator makes. On a blocking socket the caller waits, but the mediator must not: it repeats a
//! non-blocking attempt until the connection is made or refused.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use peername_sys::Errno;
use peername_sys::seccomp::{Notification, NotificationListener};
use peername_sys::socket::raw_address::{Connected, connect, connect_timeout};
use peername_sys::tcp::socket_info::{is_closed, peer_addr};

use super::call_error::{CallError, CallResult, has_errno};
use super::caller::{Caller, unix_address};
use super::ports::ListenerPorts;

/// Where a connection leads.
#[derive(Debug)]
pub(super) enum Target {
    /// An address of another family than Unix.
    Address(Vec<u8>),
    /// An abstract name of the jail's network. The server sees the caller's identity.
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
    next_attempt: Instant,
    /// When the caller of a blocking socket gives up (SO_SNDTIMEO); `None` if never.
    deadline: Option<Instant>,
    /// Whether it was reported as refused.
    is_reported: bool,
}

impl Connecting {
    pub(super) fn new(call: Notification, socket: OwnedFd, target: Target) -> Self {
        let now = Instant::now();
        Self {
            call,
            socket,
            target,
            started: now,
            next_attempt: now,
            deadline: None,
            is_reported: false,
        }
    }

    /// Tries to connect. Returns the call's result, or `None` if the caller has to wait.
    pub(super) fn attempt(&mut self) -> Option<CallResult<()>> {
        match self.connect() {
            Ok(Connected::Blocks) => {}
            Ok(Connected::Now(result)) => return Some(result.map_err(CallError::from)),
            Err(error) => return Some(Err(error)),
        }
        self.deadline = connect_timeout(&self.socket).map(|timeout| self.started + timeout);
        self.next_attempt = Instant::now() + MIN_INTERVAL;
        None
    }

    /// Reports the connection, once, if an attempt with this outcome shows that nothing listens at the address. Every connection
    /// of the jail is on loopback, where the answer comes within connect(2), so the outcome of a non-blocking socket is known,
    /// too. The program can keep a refusal from the socket (IP_MINTTL, TCP_MD5SIG, a filter), or take its error (SO_ERROR): then
    /// the connection is not made, and the address decides.
    pub(super) fn report_refusal(
        &mut self,
        outcome: Option<&CallResult<()>>,
        ports: &mut ListenerPorts,
    ) {
        let Target::Address(address) = &self.target else {
            return;
        };
        let is_refused = match outcome {
            Some(Ok(()) | Err(CallError::Mediator(_))) => false,
            Some(Err(CallError::Call(error))) if !has_errno(error, Errno::INPROGRESS) => {
                has_errno(error, Errno::CONNREFUSED) || has_errno(error, Errno::CONNABORTED)
            }
            Some(Err(CallError::Call(_))) | None => {
                peer_addr(&self.socket).is_err()
                    && (ports.lacks_listener(address) || is_closed(&self.socket))
            }
        };
        if is_refused && !self.is_reported {
            self.is_reported = true;
            ports.report_refused(&self.socket, address);
        }
    }

    /// Tries again; `None` if the caller still has to wait.
    fn retry(&mut self) -> Option<CallResult<()>> {
        match self.connect() {
            Ok(Connected::Blocks) => {}
            // An earlier attempt has connected the socket.
            Ok(Connected::Now(Err(error))) if has_errno(&error, Errno::ISCONN) => {
                return Some(Ok(()));
            }
            Ok(Connected::Now(result)) => return Some(result.map_err(CallError::from)),
            Err(error) => return Some(Err(error)),
        }
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            // As by connect(2): TCP goes on connecting in the background.
            let errno = match self.target {
                Target::Address(_) => Errno::INPROGRESS,
                Target::Abstract { .. } | Target::File { .. } => Errno::AGAIN,
            };
            return Some(Err(errno.into()));
        }
        if Caller::has_signal(&self.call) {
            return Some(Err(Errno::INTR.into()));
        }
        // The longer the caller has waited, the less another eighth of that time matters.
        let waited = now - self.started;
        self.next_attempt = now + (waited / 8).clamp(MIN_INTERVAL, MAX_INTERVAL);
        None
    }

    fn connect(&self) -> CallResult<Connected> {
        match &self.target {
            Target::Address(address) => Ok(connect(&self.socket, address)?),
            Target::Abstract { address, caller } => {
                caller.run_as(|| connect(&self.socket, address))
            }
            Target::File { file, caller } => {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                let address = unix_address(Path::new(&path))?;
                caller.run_as(|| connect(&self.socket, &address))
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
        let next = self
            .0
            .iter()
            .map(|connecting| connecting.next_attempt)
            .min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Makes the attempts that are due, reports refused connections, and answers the calls whose outcome is known.
    ///
    /// # Errors
    ///
    /// The mediator can't go on.
    pub(super) fn retry(
        &mut self,
        calls: &NotificationListener,
        ports: &mut ListenerPorts,
    ) -> peername_sys::Result<()> {
        let now = Instant::now();
        let mut outcome = Ok(());
        self.0.retain_mut(|connecting| {
            if connecting.next_attempt > now {
                return true;
            }
            let id = connecting.call.id;
            if !calls.is_pending(id) {
                return false;
            }
            let result = connecting.retry();
            connecting.report_refusal(result.as_ref(), ports);
            match result {
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

/// The time between two attempts.
const MIN_INTERVAL: Duration = Duration::from_millis(1);
const MAX_INTERVAL: Duration = Duration::from_millis(50);
