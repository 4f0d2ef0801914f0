//! Ends the program if the supervisor is killed: needed once a process of the program depends on the supervisor.

use std::os::unix::process::ExitStatusExt;
use std::rc::Rc;

use peername_sys::Result;
use peername_sys::event::epoll::Epoll;
use peername_sys::process::pidfd::ThreadFd;
use peername_sys::process::stderr::try_write_line;
use peername_sys::seccomp::Notification;

use super::kill_switch::KillSwitch;
use super::supervised_calls::{FirstProcess, SupervisedCalls};
use super::supervisor_monitor::SupervisorMonitor;

/// The supervisor's monitor, and the kernel's kill switch for the case that both are killed.
#[derive(Debug)]
pub(super) struct Failsafe {
    first: FirstProcess,
    /// `None` as long as every process that accepts has the library: such processes do not depend on the supervisor.
    started: Option<Started>,
}

#[derive(Debug)]
struct Started {
    /// `None` until one could be started.
    monitor: Option<SupervisorMonitor>,
    kill_switch: KillSwitch,
}

impl Failsafe {
    /// A failsafe that is not started yet, for a program with this first process.
    pub(super) fn new(first: FirstProcess) -> Self {
        Self {
            first,
            started: None,
        }
    }

    /// Starts the monitor, unless it runs. The supervisor learns of its exit through `epoll`.
    pub(super) fn start(&mut self, supervised: &SupervisedCalls, epoll: &Epoll) -> Result<()> {
        let first = &self.first;
        let started = match &mut self.started {
            Some(started) => started,
            // It is kept where no monitor can be started: dropping it kills the program.
            none => none.insert(Started {
                kill_switch: KillSwitch::new(supervised, first)?,
                monitor: None,
            }),
        };
        if started.monitor.is_none() {
            let inhibitor = started.kill_switch.new_inhibitor(supervised)?;
            let monitor = SupervisorMonitor::start(supervised, first, inhibitor, epoll)?;
            started.monitor = Some(monitor);
        }
        Ok(())
    }

    /// Starts another monitor for one that was killed. Where that fails, or the monitor itself has, the next accept(2) tries it again.
    pub(super) fn replace_monitor(&mut self, supervised: &SupervisedCalls, epoll: &Epoll) {
        let started = self.started.as_mut();
        let Some(exited) = started.and_then(|started| started.monitor.take()) else {
            return;
        };
        match exited.reap(epoll) {
            Ok(ended) if ended.signal().is_some() => {
                try_write_line(
                    "peername: the monitor of the supervisor was killed; starting another",
                );
                if let Err(error) = self.start(supervised, epoll) {
                    try_write_line(&format!(
                        "peername: no monitor of the supervisor until the next accept(2): {error}"
                    ));
                }
            }
            // Another would fail as well.
            _ => try_write_line(
                "peername: the monitor of the supervisor has failed; the next accept(2) starts another",
            ),
        }
    }

    /// Adds the process that makes this call, if the failsafe is started: it depends on the supervisor for its accept(2).
    /// `thread` is the one that makes it, if it was opened.
    pub(super) fn note(
        &mut self,
        supervised: &SupervisedCalls,
        call: &Notification,
        thread: Option<&Rc<ThreadFd>>,
    ) {
        if let Some(started) = &mut self.started {
            started.kill_switch.note(supervised, call, thread);
        }
    }
}
