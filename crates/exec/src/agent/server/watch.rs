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
    pub(super) due: Instant,
    /// The directories that can't be watched.
    unwatched: BTreeSet<PathBuf>,
}

impl PolicyWatch {
    /// Creates a watch without directories.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            directories: DirectoryWatch::new()?,
            due: Instant::now() + QUIET_PERIOD,
            unwatched: BTreeSet::new(),
        })
    }

    /// Watches these directories, too. Their files are compared once more, because they may have changed since they were read.
    pub(super) fn add_directories(&mut self, directories: &BTreeSet<PathBuf>) {
        self.watch_all(directories);
        self.due = Instant::now() + QUIET_PERIOD;
    }

    /// Watches the directories that are at these paths now, because an event may have ended a watch, and schedules the next
    /// comparison. To be called before the comparison that is due.
    pub(super) fn begin_comparison(&mut self, directories: &BTreeSet<PathBuf>, now: Instant) {
        self.watch_all(directories);
        let interval = if self.unwatched.is_empty() {
            COMPARE_INTERVAL
        } else {
            POLL_INTERVAL
        };
        self.due = now + interval;
    }

    /// Watches the directories, and logs those that can't be watched from now on.
    fn watch_all(&mut self, directories: &BTreeSet<PathBuf>) {
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
    }

    /// Discards the events, and schedules the comparison, unless it is due earlier.
    pub(super) fn note_events(&mut self) {
        self.directories.drain();
        self.due = self.due.min(Instant::now() + QUIET_PERIOD);
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
/// The interval of comparisons, as in the files of other commands: no event reports the rename of a directory further up, nor
/// another host's change.
const COMPARE_INTERVAL: Duration = Duration::from_secs(5);
/// The interval of comparisons while a directory can't be watched.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::fs;

    use peername_sys::event::wait_readable;

    use super::*;

    #[test]
    fn files_are_compared_at_intervals() {
        let mut watch = PolicyWatch::new().unwrap();
        let now = Instant::now();
        for (directory, interval) in [("/", COMPARE_INTERVAL), ("/missing", POLL_INTERVAL)] {
            let directories = BTreeSet::from([directory.into()]);
            watch.add_directories(&directories);
            assert!(watch.due <= Instant::now() + QUIET_PERIOD);
            watch.begin_comparison(&directories, now);
            assert_eq!(watch.due, now + interval);
        }
    }

    /// Another directory is at the path after the rename, and is watched from the next comparison on.
    #[test]
    fn replaced_directory_is_reported_and_watched_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("watched");
        fs::create_dir(&path).unwrap();
        let directories = BTreeSet::from([path.clone()]);
        let mut watch = PolicyWatch::new().unwrap();
        watch.begin_comparison(&directories, Instant::now());
        fs::rename(&path, root.path().join("before")).unwrap();
        assert!(has_event(&watch));
        watch.note_events();
        assert!(watch.due <= Instant::now() + QUIET_PERIOD);
        fs::create_dir(&path).unwrap();
        watch.begin_comparison(&directories, Instant::now());
        fs::write(path.join("file"), "").unwrap();
        assert!(has_event(&watch));
    }

    fn has_event(watch: &PolicyWatch) -> bool {
        wait_readable([watch.as_fd()], Some(Duration::ZERO)).unwrap()
    }
}
