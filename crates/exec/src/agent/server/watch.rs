//! Watches the policies' files for changes, which reload the policies. inotify(7) is read in the agent's event loop and not in
//! a thread, because the agent forks.

use std::collections::BTreeSet;
use std::mem;
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
    /// The directories that can't be watched.
    unwatched: BTreeSet<PathBuf>,
}

impl PolicyWatch {
    /// Creates a watch without directories.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            directories: DirectoryWatch::new()?,
            due: None,
            unwatched: BTreeSet::new(),
        })
    }

    /// Watches these directories, too, and logs those that can't be watched from now on. Their files are compared once more,
    /// because they may have changed since they were read.
    pub(super) fn add_directories(&mut self, directories: &BTreeSet<PathBuf>) {
        let before = mem::take(&mut self.unwatched);
        for directory in directories {
            let Err(error) = self.directories.add_for_changes(directory) else {
                continue;
            };
            if !before.contains(directory) {
                try_write_line(&format!(
                    "peername: --watch: can't watch {}, the files are compared every {POLL_INTERVAL:?}: {error}",
                    directory.display()
                ));
            }
            self.unwatched.insert(directory.clone());
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
    /// file. While a directory can't be watched, the files are compared every [`POLL_INTERVAL`].
    pub(super) fn take_reload(&mut self, now: Instant, are_current: impl Fn() -> bool) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.due = (!self.unwatched.is_empty()).then(|| now + POLL_INTERVAL);
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
/// The interval of comparisons while a directory can't be watched.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_directory_that_can_not_be_watched_are_compared_again_and_again() {
        let mut watch = PolicyWatch::new().unwrap();
        watch.add_directories(&BTreeSet::from(["/".into()]));
        let due = watch.due.unwrap();
        assert!(!watch.take_reload(due, || true));
        assert_eq!(watch.due, None);
        watch.add_directories(&BTreeSet::from(["/missing".into()]));
        let due = watch.due.unwrap();
        assert!(!watch.take_reload(due, || true));
        assert!(watch.take_reload(due + POLL_INTERVAL, || false));
    }
}
