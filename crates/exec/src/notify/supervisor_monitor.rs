//! The supervisor's monitor: ends the program if the supervisor is killed.
//!
//! Without a supervisor the kernel fails accept(2) with ENOSYS, at which servers spin, or stop serving while they seem alive.
//! So a second process, which does nothing else, holds the notification listener, too. If the supervisor is killed, calls wait,
//! and the monitor ends the program and all of its descendants, so that a service manager can restart them. If both are killed
//! at once, accept(2) fails, and no client is served.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use peername_sys::Result;
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::process::caps::{self, CapabilitySet};
use peername_sys::process::fork::{self, ChildProcess};
use peername_sys::process::pidfd::{PidFd, Signal, descendants};
use peername_sys::seccomp::{Notification, NotificationListener, has_no_process};

use super::epoll_token::EpollToken;
use super::inflight_calls::{InflightCalls, SupervisedCalls};
use crate::stderr_line::try_write_line;

/// The first process of a program that `peername exec` has started.
#[derive(Debug)]
pub(super) struct FirstProcess {
    pub(super) pid: u32,
    pub(super) process: PidFd,
}

/// The supervisor's handle of its monitor.
#[derive(Debug)]
pub(super) struct SupervisorMonitor {
    first: FirstProcess,
    /// `None` until a monitor is needed, and while none can be started. It is not needed as long as every process that accepts
    /// has the library, which does not depend on the supervisor.
    child: Option<ChildProcess>,
    /// Whether a monitor was started before.
    is_needed: bool,
    failure_logged: bool,
}

impl SupervisorMonitor {
    /// Creates the handle of a monitor that is not started yet, for a program with this first process.
    pub(super) fn new(first: FirstProcess) -> Self {
        Self {
            first,
            child: None,
            is_needed: false,
            failure_logged: false,
        }
    }

    /// Starts the monitor as a child of the supervisor, unless it runs. The supervisor learns of the monitor's exit through
    /// `epoll`.
    pub(super) fn start(&mut self, supervised: &SupervisedCalls, epoll: &Epoll) -> Result<()> {
        if self.child.is_none() {
            let child = fork_monitor(supervised, &self.first)?;
            let exited = EpollToken::MonitorExited.into();
            if let Err(error) = epoll.add(child.pidfd(), exited, Interest::Readable) {
                child.kill();
                return Err(error);
            }
            self.child = Some(child);
            self.is_needed = true;
        }
        Ok(())
    }

    /// Whether a monitor was started before, and none runs.
    pub(super) fn is_missing(&self) -> bool {
        self.is_needed && self.child.is_none()
    }

    /// Starts another monitor if it is missing. That it is missing was logged already.
    pub(super) fn retry(&mut self, supervised: &SupervisedCalls, epoll: &Epoll) {
        if self.is_missing() {
            let _ = self.start(supervised, epoll);
        }
    }

    /// Reaps a monitor that has exited, and starts another one at once if the monitor was killed. If that fails, or the monitor
    /// has exited by itself, [`SupervisorMonitor::retry`] starts another.
    pub(super) fn replace(&mut self, supervised: &SupervisedCalls, epoll: &Epoll) {
        let Some(exited) = self.child.take() else {
            return;
        };
        let _ = epoll.delete(exited.pidfd());
        match exited.wait() {
            Ok(status) if status.signal().is_some() => {
                try_write_line(
                    "peername: the monitor of the supervisor was killed; starting another",
                );
                if let Err(error) = self.start(supervised, epoll) {
                    try_write_line(&format!(
                        "peername: no monitor of the supervisor, trying again each second: {error}"
                    ));
                }
            }
            // Another monitor may fail as well, so none is started at once.
            _ => self.log_failure(),
        }
    }

    fn log_failure(&mut self) {
        if !self.failure_logged {
            self.failure_logged = true;
            try_write_line(
                "peername: the monitor of the supervisor has failed; starting another each second",
            );
        }
    }
}

/// Forks the monitor's process.
fn fork_monitor(supervised: &SupervisedCalls, first: &FirstProcess) -> Result<ChildProcess> {
    let (inflight, pid) = (supervised.inflight, first.pid);
    let inherited = [
        PidFd::current()?.into(),
        supervised.calls.try_clone()?.into(),
        first.process.try_clone()?.into(),
    ];
    ChildProcess::fork(inherited, |[supervisor, calls, process]| {
        fork::set_thread_name(c"peername-guard");
        // The monitor only ends the program. If the other capabilities can't be dropped, that is no reason to fail.
        if caps::is_effective(CapabilitySet::SYS_PTRACE) {
            let _ = caps::keep_only(CapabilitySet::KILL);
        }
        let monitor = MonitorProcess {
            calls: calls.into(),
            inflight,
            first: FirstProcess {
                pid,
                process: process.into(),
            },
        };
        u8::from(monitor.run(&supervisor.into()).is_err())
    })
}

/// The state of the monitor's process.
struct MonitorProcess {
    calls: NotificationListener,
    inflight: InflightCalls,
    first: FirstProcess,
}

impl MonitorProcess {
    /// Waits for the supervisor's exit. If processes with the filter are left then, ends them.
    fn run(&self, supervisor: &PidFd) -> Result<()> {
        wait_event(supervisor)?;
        if self.wait_all_exited(Duration::ZERO)? {
            return Ok(());
        }
        // The signal interrupts a pending call, so that the program's handler runs.
        self.signal_all(Signal::TERM);
        if self.wait_all_exited(GRACE_PERIOD)? {
            return Ok(());
        }
        self.signal_all(Signal::KILL);
        for inflight in self.inflight.iter() {
            self.kill(&inflight.call);
        }
        // An orphaned process without a pending call is found at its next call.
        while !self.wait_all_exited(Duration::ZERO)? {
            wait_event(&self.calls)?;
            if self.wait_all_exited(Duration::ZERO)? {
                break;
            }
            if let Ok(call) = self.calls.receive() {
                self.kill(&call);
            }
        }
        Ok(())
    }

    /// Signals the first process and its descendants.
    fn signal_all(&self, signal: Signal) {
        let mut family = descendants(self.first.pid);
        // If the first process has exited, its descendants were reparented, and another process may have its id.
        if self.first.process.has_exited() {
            family.clear();
        }
        let _ = self.first.process.signal(signal);
        for process in family.into_iter().flat_map(PidFd::open) {
            let _ = process.signal(signal);
        }
    }

    /// Kills the process of a thread, if the thread still waits for the answer to this call.
    fn kill(&self, call: &Notification) {
        let Ok(process) = PidFd::of_thread(call.tid) else {
            return;
        };
        if self.calls.is_pending(call.id) {
            let _ = process.signal(Signal::KILL);
        }
    }

    /// Waits at most `limit` until no process with the filter is left. Returns whether none is.
    fn wait_all_exited(&self, limit: Duration) -> Result<bool> {
        let (epoll, deadline) = (Epoll::new()?, Instant::now() + limit);
        epoll.add(&self.calls, 0, Interest::ReadableEdge)?;
        loop {
            let mut events = Vec::new();
            let left = deadline.saturating_duration_since(Instant::now());
            epoll.wait(Some(left), &mut events)?;
            if events.iter().any(|event| event.hung_up) && has_no_process(&self.calls) {
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }
}

/// Waits until the descriptor is readable or hung up.
fn wait_event(fd: impl AsFd) -> Result<()> {
    let epoll = Epoll::new()?;
    epoll.add(fd, 0, Interest::Readable)?;
    epoll.wait(None, &mut Vec::new())
}

/// The time from SIGTERM to SIGKILL. accept(2) does not return any more, so the program only finishes the work in progress.
const GRACE_PERIOD: Duration = Duration::from_secs(2);
