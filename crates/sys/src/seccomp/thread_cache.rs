//! Caches the threads of the program that make calls, and copies their descriptors (pidfd_getfd(2)).

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::rc::Rc;

use super::listener::{Notification, NotificationListener};
use crate::ipc::foreign_fd::ForeignFd;
use crate::process::pidfd::ThreadFd;
use crate::{Errno, Result, SyscallError};

/// The threads that have made calls before: a thread is opened once, not at each call. They are closed when a call
/// needs a descriptor and none is left: [`ThreadCache::with_room`].
#[derive(Debug)]
pub struct ThreadCache {
    threads: HashMap<u32, Rc<ThreadFd>>,
    /// The maximum number of threads. When it is reached, all are removed: those that make more calls are opened again.
    capacity: usize,
    /// The number of threads at which those that have exited are removed next.
    prune_at: usize,
}

impl ThreadCache {
    /// Creates an empty cache for a process that may open `max_open_files` files.
    pub fn new(max_open_files: u64) -> Self {
        let share = usize::try_from(max_open_files / SHARE).unwrap_or(MAX_CACHED_THREADS);
        let capacity = MAX_CACHED_THREADS.min(share);
        Self {
            threads: HashMap::new(),
            capacity,
            prune_at: MIN_PRUNED.min(capacity),
        }
    }

    /// Copies the caller's descriptor of this number. `None` if the caller has exited.
    ///
    /// # Errors
    ///
    /// EBADF where nothing is open there, EPERM without the rights of ptrace(2); EMFILE or ENFILE.
    pub fn descriptor(
        &mut self,
        calls: &NotificationListener,
        call: &Notification,
        number: RawFd,
    ) -> Result<Option<(Rc<ThreadFd>, ForeignFd)>> {
        match self.copy(calls, call, number) {
            Err(error) if self.make_room(&error) => self.copy(calls, call, number),
            copied => copied,
        }
    }

    /// Makes a call that opens a descriptor. If there is none left, closes the cached threads and makes the call again.
    pub fn with_room<T>(&mut self, call: impl Fn() -> Result<T>) -> Result<T> {
        match call() {
            Err(error) if self.make_room(&error) => call(),
            done => done,
        }
    }

    /// Closes the cached threads if a call has failed for want of a descriptor. Returns whether the call may succeed now.
    fn make_room(&mut self, error: &SyscallError) -> bool {
        let makes_room = error.is_out_of_descriptors() && !self.threads.is_empty();
        if makes_room {
            self.threads.clear();
        }
        makes_room
    }

    fn copy(
        &mut self,
        calls: &NotificationListener,
        call: &Notification,
        number: RawFd,
    ) -> Result<Option<(Rc<ThreadFd>, ForeignFd)>> {
        if let Some(cached) = self.threads.get(&call.tid) {
            match cached.get_fd(number) {
                // The cached thread has exited, and the caller has its id: no two live threads have the same.
                Err(error) if error.errno() == Some(Errno::SRCH.raw_os_error()) => {}
                copied => return copied.map(|fd| Some((Rc::clone(cached), fd.into()))),
            }
        }
        let thread = Rc::new(ThreadFd::open(call.tid)?);
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
        if self.threads.len() >= self.prune_at {
            self.prune();
        }
        self.threads.insert(tid, Rc::clone(thread));
    }

    /// Removes the threads that have exited, or all if `capacity` are left. The next pruning is due when the number of
    /// the threads that are left has doubled, or at the capacity; so a thread is examined about once, unless more than half of
    /// the capacity are left.
    fn prune(&mut self) {
        self.threads.retain(|_, thread| !thread.has_exited());
        if self.threads.len() >= self.capacity {
            self.threads.clear();
        }
        let next = (self.threads.len() * 2).max(MIN_PRUNED);
        self.prune_at = next.min(self.capacity);
    }
}

/// The maximum capacity; each thread takes a descriptor of this process.
const MAX_CACHED_THREADS: usize = 1024;
/// The cache takes one in 12 descriptors: the others are for connections, and for calls that are in progress.
const SHARE: u64 = 12;
/// Fewer threads than this are not examined: that would cost more than keeping those that have exited.
const MIN_PRUNED: usize = 64;

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::{self, Command};

    use super::*;
    use crate::NameCall;

    #[test]
    fn cached_threads_make_room_for_a_descriptor() {
        let mut cache = ThreadCache::new(1 << 20);
        cache.insert(1, &live_thread());
        let attempts = Cell::new(0);
        let fail_once = || {
            attempts.set(attempts.get() + 1);
            let result = if attempts.get() == 1 {
                Err(Errno::MFILE)
            } else {
                Ok(())
            };
            result.call("accept4(2)")
        };
        cache.with_room(fail_once).unwrap();
        assert_eq!((attempts.get(), cache.threads.len()), (2, 0));
        // Nothing is left that could make room.
        attempts.set(0);
        let error = cache.with_room(fail_once).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EMFILE));
        assert_eq!(attempts.get(), 1);
    }

    #[test]
    fn threads_that_have_exited_are_removed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let exited = Rc::new(ThreadFd::open(child.id()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        let mut cache = ThreadCache::new(1 << 20);
        (1..=64).for_each(|tid| cache.insert(tid, &exited));
        cache.insert(65, &live_thread());
        assert_eq!(cache.threads.into_keys().collect::<Vec<_>>(), [65]);
    }

    #[test]
    fn cache_takes_a_share_of_the_descriptors() {
        let mut cache = ThreadCache::new(120);
        let live = live_thread();
        for tid in 1..100 {
            cache.insert(tid, &live);
            assert!((1..=10).contains(&cache.threads.len()));
        }
    }

    fn live_thread() -> Rc<ThreadFd> {
        Rc::new(ThreadFd::open(process::id()).unwrap())
    }
}
