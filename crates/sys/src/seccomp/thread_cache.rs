//! Caches the threads of the program that make calls, and copies their descriptors (pidfd_getfd(2)).

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::rc::Rc;

use super::listener::{Notification, NotificationListener};
use crate::ipc::foreign_fd::ForeignFd;
use crate::process::pidfd::ThreadFd;
use crate::{Errno, Result};

/// The threads that have made calls before: a thread is opened once, not at each call.
#[derive(Debug, Default)]
pub struct ThreadCache(HashMap<u32, Rc<ThreadFd>>);

impl ThreadCache {
    /// Copies the caller's descriptor of this number. `None` if the caller has exited.
    ///
    /// # Errors
    ///
    /// EBADF where nothing is open there, EPERM without the rights of ptrace(2).
    pub fn descriptor(
        &mut self,
        calls: &NotificationListener,
        call: &Notification,
        number: RawFd,
    ) -> Result<Option<(Rc<ThreadFd>, ForeignFd)>> {
        if let Some(cached) = self.0.get(&call.tid) {
            match cached.get_fd(number) {
                // The cached thread has exited, and the caller has its id: no two live threads have the same.
                Err(error) if error.errno() == Some(Errno::SRCH.raw_os_error()) => {}
                copied => return copied.map(|fd| Some((Rc::clone(cached), fd.into()))),
            }
        }
        let thread = match ThreadFd::open(call.tid) {
            // The cached threads have used up the descriptors of this process.
            Err(error) if error.errno() == Some(Errno::MFILE.raw_os_error()) => {
                self.0.clear();
                ThreadFd::open(call.tid)?
            }
            opened => opened?,
        };
        let thread = Rc::new(thread);
        let copy = ForeignFd::from(thread.get_fd(number)?);
        // If the call is over, the caller may have exited, and this may be another thread with its id.
        if !calls.is_pending(call.id) {
            return Ok(None);
        }
        if thread.is_of_thread() {
            self.insert(call.tid, &thread);
        }
        Ok(Some((thread, copy)))
    }

    fn insert(&mut self, tid: u32, thread: &Rc<ThreadFd>) {
        if self.0.len() >= MAX_CACHED_THREADS {
            self.0.clear();
        }
        self.0.insert(tid, Rc::clone(thread));
    }
}

/// The capacity of the cache; each thread takes a descriptor of this process.
const MAX_CACHED_THREADS: usize = 1024;
