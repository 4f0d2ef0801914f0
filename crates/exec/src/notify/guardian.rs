//! What happens when the supervisor is killed: the program ends.
//!
//! Without a supervisor the kernel answers ENOSYS to accept(2), at which servers spin or stop serving
//! while they look alive. So a second process, which does nothing else, holds the listener too (calls
//! then wait), ends the program and whatever it has started, and so lets a service manager start all
//! of it again.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use peername_sys::Result;
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::process::caps::{self, Capability};
use peername_sys::process::daemonize;
use peername_sys::process::kill_on_close::KillInhibitor;
use peername_sys::process::pidfd::{PidFd, Signal, descendants};
use peername_sys::seccomp::NotificationListener;

use super::ledger::{Ledger, Open};
use super::supervisor::Token;

/// The guardian, as the supervisor knows it.
#[derive(Debug)]
pub(super) struct Guardian {
    pid: u32,
    process: PidFd,
}

/// What it needs.
#[derive(Debug)]
pub(super) struct Ward {
    pub(super) calls: NotificationListener,
    pub(super) ledger: Ledger,
    /// The program's first process.
    pub(super) program: u32,
    pub(super) target: PidFd,
}

impl Guardian {
    /// Starts one, as a child of the supervisor, which waits for its end at `epoll`.
    pub(super) fn start(ward: &Ward, hold: KillInhibitor, epoll: &Epoll) -> Result<Self> {
        let (ledger, program) = (ward.ledger, ward.program);
        let [pipe, queue] = hold.into();
        let keep = [
            PidFd::current()?.into(),
            ward.calls.try_clone()?.into(),
            ward.target.try_clone()?.into(),
            pipe,
            queue,
        ];
        let pid = daemonize::fork_child(keep, |[supervisor, calls, target, pipe, queue]| {
            daemonize::set_thread_name(c"peername-guard");
            // Nothing but to end the program is left for it. That it keeps more than it needs is no reason to fail.
            if caps::is_effective(Capability::CAP_SYS_PTRACE) {
                let _ = caps::keep_only(&[Capability::CAP_KILL]);
            }
            let _hold = KillInhibitor::from([pipe, queue]);
            let ward = Ward {
                calls: calls.into(),
                ledger,
                program,
                target: target.into(),
            };
            u8::from(ward.guard(&supervisor.into()).is_err())
        })?;
        let process = PidFd::open(pid)?;
        epoll.add(&process, Token::Guardian.into(), Interest::Readable)?;
        Ok(Self { pid, process })
    }

    /// Starts another in its place, as it has ended; the epoll instance watches for the end of this one now.
    pub(super) fn replace(
        &mut self,
        ward: &Ward,
        hold: KillInhibitor,
        epoll: &Epoll,
    ) -> Result<()> {
        eprintln!("peername: the guardian was killed; starting another");
        let old = std::mem::replace(self, Self::start(ward, hold, epoll)?);
        let _ = epoll.delete(&old.process);
        daemonize::reap(old.pid);
        Ok(())
    }
}

impl Ward {
    /// Waits for the supervisor's end. If processes with the filter are left then, ends them.
    fn guard(&self, supervisor: &PidFd) -> Result<()> {
        wait_for(supervisor)?;
        if self.all_have_ended(Duration::ZERO)? {
            return Ok(());
        }
        // A call that waits is interrupted by the signal, so that its handler runs.
        self.signal_all(Signal::TERM);
        if self.all_have_ended(GRACE)? {
            return Ok(());
        }
        self.signal_all(Signal::KILL);
        self.ledger.all_open().for_each(|call| self.kill(call));
        // Who was orphaned and is not asking now is found out when it asks.
        while !self.all_have_ended(Duration::ZERO)? {
            wait_for(&self.calls)?;
            if self.all_have_ended(Duration::ZERO)? {
                break;
            }
            if let Ok(call) = self.calls.receive() {
                self.kill(Open {
                    id: call.id,
                    tid: call.tid,
                });
            }
        }
        Ok(())
    }

    fn signal_all(&self, signal: Signal) {
        let family = descendants(self.program);
        let _ = self.target.signal(signal);
        for process in family.into_iter().flat_map(PidFd::open) {
            let _ = process.signal(signal);
        }
    }

    /// Kills the process of a thread that waits for an answer, if it still does.
    fn kill(&self, call: Open) {
        let Ok(process) = PidFd::of_thread(call.tid) else {
            return;
        };
        if self.calls.is_pending(call.id) {
            let _ = process.signal(Signal::KILL);
        }
    }

    /// Whether no process with the filter is left, or none soon.
    fn all_have_ended(&self, limit: Duration) -> Result<bool> {
        let (epoll, deadline) = (Epoll::new()?, Instant::now() + limit);
        epoll.add(&self.calls, 0, Interest::ReadableEdge)?;
        loop {
            let mut found = Vec::new();
            let left = deadline.saturating_duration_since(Instant::now());
            epoll.wait(Some(left), &mut found)?;
            if found.iter().any(|found| found.hung_up) {
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }
}

fn wait_for(fd: impl AsFd) -> Result<()> {
    let epoll = Epoll::new()?;
    epoll.add(fd, 0, Interest::Readable)?;
    epoll.wait(None, &mut Vec::new())
}

/// From SIGTERM to SIGKILL. Its accept(2) does not return any more, so what it still does is finish.
const GRACE: Duration = Duration::from_secs(2);
