//! Watches the policies' files for changes, which reload the policies. inotify(7) is read in the agent's event loop and not in
//! a thread, because the agent forks.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use peername_sys::Result;
use peername_sys::fs::inotify::DirectoryWatch;

use crate::stderr_line::try_write_line;

/// The watch of the policies' files. The directories are watched, because an editor replaces a file, and a ConfigMap a symbolic
/// link.
#[derive(Debug)]
pub(super) struct PolicyWatch {
    directories: DirectoryWatch,
    /// When the files are compared next.
    pub(super) due: Option<Instant>,
}

impl PolicyWatch {
    /// Creates a watch without directories.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            directories: DirectoryWatch::new()?,
            due: None,
        })
    }

    /// Watches these directories, too. Their files are compared once more, because they may have changed since they were read.
    pub(super) fn add_directories(&mut self, directories: &BTreeSet<PathBuf>) {
        for directory in directories {
            if let Err(error) = self.directories.add_for_changes(directory) {
                try_write_line(&format!(
                    "peername: --watch: can't watch {}, use SIGHUP: {error}",
                    directory.display()
                ));
            }
        }
        self.due = Some(Instant::now() + QUIET_PERIOD);
    }

    /// Discards the events, and schedules the comparison.
    pub(super) fn note_events(&mut self) {
        self.directories.drain();
        self.due
            .get_or_insert_with(|| Instant::now() + QUIET_PERIOD);
    }

    /// Whether the policies are to be reloaded: compares the files, if that is due. The event may have been that of another
    /// file.
    pub(super) fn take_reload(&mut self, now: Instant, are_current: impl Fn() -> bool) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.due = None;
        }
        is_due && !are_current()
    }
}

impl AsFd for PolicyWatch {
    /// Readable when there are events to note.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directories.as_fd()
    }
}

/// The delay after the first event: files that belong together are written one after the other.
const QUIET_PERIOD: Duration = Duration::from_millis(500);
