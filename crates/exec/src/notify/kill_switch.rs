//! The kill switch: the kernel ends the processes that accept, if the supervisor and its monitor are killed at the
//! same time.
//!
//! No process is left to end them then, and accept(2) would fail with ENOSYS from that moment on. So the kernel kills the
//! program's first process, each process that has accepted once, and the process groups that these lead. It does so when the
//! last of supervisor and monitor ends, before any call fails.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::rc::{Rc, Weak};

use peername_sys::process::kill_on_close::{KillInhibitor, KillOnClose};
use peername_sys::process::pidfd::{ThreadFd, thread_group_leader};
use peername_sys::seccomp::Notification;
use peername_sys::{Errno, Result};

use super::supervised_calls::{FirstProcess, SupervisedCalls};

/// The processes that the kernel kills. The supervisor, which keeps it, inhibits it.
#[derive(Debug)]
pub(super) struct KillSwitch {
    kill_on_close: KillOnClose,
    /// Threads that have made a call, by id.
    threads: HashMap<u32, KnownThread>,
}

/// A thread whose process is a target.
#[derive(Debug)]
enum KnownThread {
    /// The thread itself. One that makes a call is alive, so its process is, and stays a target. The reference keeps the address,
    /// so no other thread is taken for this one.
    Thread(Weak<ThreadFd>),
    /// Its process, where the kernel has no descriptors of threads (before Linux 6.9).
    Process(u32),
}

impl KillSwitch {
    /// Creates a kill switch for the program's first process, and the group that it leads. The supervisor, which is this
    /// process, inhibits it.
    pub(super) fn new(supervised: &SupervisedCalls, first: &FirstProcess) -> Result<Self> {
        let is_it = || !first.process.has_exited();
        let mut kill_on_close = KillOnClose::new(Some(supervised.calls.as_fd()))?;
        match kill_on_close.add(first.pid, is_it) {
            // A daemon's first process has exited.
            Err(error) if error.errno() == Some(Errno::SRCH.raw_os_error()) => {}
            added => added?,
        }
        // The group also has processes that have not accepted yet. Without it, each is added when it accepts.
        let _ = kill_on_close.add_group_of(first.pid, is_it);
        Ok(Self {
            kill_on_close,
            threads: HashMap::new(),
        })
    }

    /// Creates an inhibitor for a monitor.
    pub(super) fn new_inhibitor(&mut self, supervised: &SupervisedCalls) -> Result<KillInhibitor> {
        self.kill_on_close
            .new_inhibitor(Some(supervised.calls.as_fd()))
    }

    /// Adds the process of the thread that waits for the answer to this call. `thread` is that thread, if it was opened.
    pub(super) fn note(
        &mut self,
        supervised: &SupervisedCalls,
        call: &Notification,
        thread: Option<&Rc<ThreadFd>>,
    ) {
        if thread.is_some_and(|thread| self.is_known(call.tid, thread)) {
            return;
        }
        let Ok(process) = thread_group_leader(call.tid) else {
            return;
        };
        let is_it = || supervised.calls.is_pending(call.id);
        if !self.kill_on_close.contains(process) {
            // A process that can't be added is served nevertheless.
            let _ = self.kill_on_close.add(process, is_it);
            // A daemon leads a group, with children that have not accepted yet.
            let _ = self.kill_on_close.add_group_of(process, is_it);
        }
        if let Some(thread) = thread
            && self.kill_on_close.contains(process)
            && is_it()
        {
            let known = match thread.is_of_thread() {
                true => KnownThread::Thread(Rc::downgrade(thread)),
                false => KnownThread::Process(process),
            };
            self.insert(call.tid, known);
        }
    }

    /// Whether the thread's process is a target. The id of a thread does not tell: it may be that of a thread that has exited,
    /// whose process lives on.
    fn is_known(&self, tid: u32, thread: &Rc<ThreadFd>) -> bool {
        match self.threads.get(&tid) {
            Some(KnownThread::Thread(known)) => known.ptr_eq(&Rc::downgrade(thread)),
            // The process of a reused id is not told apart here.
            Some(KnownThread::Process(process)) => self.kill_on_close.contains(*process),
            None => false,
        }
    }

    fn insert(&mut self, tid: u32, known: KnownThread) {
        if self.threads.len() >= MAX_CACHED_THREADS {
            self.threads.clear();
        }
        self.threads.insert(tid, known);
    }
}

/// The capacity of the cache of threads. It is cleared beyond that: most of so many threads have exited.
const MAX_CACHED_THREADS: usize = 1024;
