//! The program's threads that make calls, and the descriptors they have.

use std::collections::HashMap;
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;

use peername_sys::process::pidfd::Process;
use peername_sys::seccomp::{Listener, Notification};
use peername_sys::{Errno, Result};

/// Those that have called before. A thread is opened once, not at each call.
#[derive(Debug, Default)]
pub(super) struct Threads(HashMap<u32, Rc<Process>>);

impl Threads {
    /// What the caller has under this number, and the caller. `None` if it has ended.
    ///
    /// # Errors
    ///
    /// EBADF where nothing is open there, EPERM without the rights of ptrace(2).
    pub(super) fn descriptor(
        &mut self,
        calls: &Listener,
        call: &Notification,
        number: RawFd,
    ) -> Result<Option<(Rc<Process>, OwnedFd)>> {
        if let Some(known) = self.0.get(&call.tid) {
            match known.descriptor(number) {
                // It has ended, and its number is another's: no two live threads have one.
                Err(error) if error.errno() == Some(Errno::SRCH.raw_os_error()) => {}
                found => return found.map(|fd| Some((Rc::clone(known), fd))),
            }
        }
        let (thread, lasting) = Process::with_descriptors_of(call.tid)?;
        let thread = Rc::new(thread);
        let found = thread.descriptor(number)?;
        // Else the thread has ended, and its number may be another's already.
        if !calls.waits(call.id) {
            return Ok(None);
        }
        if lasting {
            self.keep(call.tid, &thread);
        }
        Ok(Some((thread, found)))
    }

    fn keep(&mut self, tid: u32, thread: &Rc<Process>) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(tid, Rc::clone(thread));
    }
}

/// Threads that are remembered, a descriptor each.
const MOST: usize = 1024;
