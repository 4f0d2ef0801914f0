//! The processes that accept, entrusted to the kernel.
//!
//! If the supervisor and the guardian are killed at once, nobody is left to end them, and accept(2) fails with
//! ENOSYS from then on. So the kernel does it: whoever has accepted once, and the program's first process, are
//! killed with the last of the two, before any call fails.

use std::collections::HashMap;
use std::os::fd::AsFd;

use peername_sys::Result;
use peername_sys::process::kill_on_close::{KillInhibitor, KillOnClose};
use peername_sys::process::pidfd::thread_group_leader;

use super::guardian::Ward;
use super::ledger::Open;

/// Those that are known.
#[derive(Debug)]
pub(super) struct Acceptors {
    dead_man: KillOnClose,
    _ours: KillInhibitor,
    /// The process of a thread.
    processes: HashMap<u32, u32>,
}

impl Acceptors {
    /// With the program's first process, and this one, the supervisor, for a holder.
    pub(super) fn new(ward: &Ward) -> Result<Self> {
        let mut dead_man = KillOnClose::new()?;
        dead_man.add(ward.program, || !ward.target.has_exited())?;
        Ok(Self {
            _ours: dead_man.new_inhibitor(Some(ward.calls.as_fd()))?,
            dead_man,
            processes: HashMap::new(),
        })
    }

    /// For a guardian.
    pub(super) fn hold(&mut self, ward: &Ward) -> Result<KillInhibitor> {
        self.dead_man.new_inhibitor(Some(ward.calls.as_fd()))
    }

    /// Takes note that the thread accepts, which waits for the answer to this call.
    pub(super) fn note(&mut self, ward: &Ward, call: Open) {
        let known = self.processes.get(&call.tid);
        if known.is_some_and(|&process| self.dead_man.contains(process)) {
            return;
        }
        let Ok(process) = thread_group_leader(call.tid) else {
            return;
        };
        if self.processes.len() >= MOST {
            self.processes.clear();
        }
        self.processes.insert(call.tid, process);
        if !self.dead_man.contains(process) {
            // Where there is no room for it, it is served all the same.
            let _ = self
                .dead_man
                .add(process, || ward.calls.is_pending(call.id));
        }
    }
}

/// Threads that are remembered; most of more have ended.
const MOST: usize = 1024;
