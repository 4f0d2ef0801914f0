//! Watches directories (inotify(7)).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{self, WatchFlags};

use crate::{NameCall, Result};

/// An inotify instance that watches directories for new and changed files.
#[derive(Debug)]
pub struct DirectoryWatch(OwnedFd);

impl DirectoryWatch {
    /// Opens an instance that watches no directory yet.
    ///
    /// # Errors
    ///
    /// EMFILE beyond `fs.inotify.max_user_instances`.
    pub fn new() -> Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        inotify::init(flags).map(Self).call("inotify_init1(2)")
    }

    /// Watches a directory for files that are created in it or renamed into it.
    ///
    /// # Errors
    ///
    /// ENOENT, ENOTDIR or EACCES for the path; ENOSPC beyond `fs.inotify.max_user_watches`.
    pub fn add(&self, directory: &Path) -> Result<()> {
        self.add_watch(directory, WatchFlags::CREATE | WatchFlags::MOVED_TO)
    }

    /// Watches a directory for each change of a file in it, and of its entries, and for its own end or rename: the path may lead
    /// to another directory then, which is to be added. No event comes for a directory further up.
    pub fn add_for_changes(&self, directory: &Path) -> Result<()> {
        let entries = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        let files = WatchFlags::MODIFY | WatchFlags::ATTRIB;
        let itself = WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
        self.add_watch(directory, entries | files | itself)
    }

    fn add_watch(&self, directory: &Path, events: WatchFlags) -> Result<()> {
        inotify::add_watch(&self.0, directory, events | WatchFlags::ONLYDIR)
            .map(drop)
            .call("inotify_add_watch(2)")
    }

    /// Discards the events so far.
    pub fn drain(&self) {
        let mut buffer = [0; 4096];
        while rustix::io::read(&self.0, &mut buffer).is_ok_and(|read| read > 0) {}
    }
}

impl AsFd for DirectoryWatch {
    /// Readable when there are events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
