//! Reloads the policies when their files change. The agent starts processes, so it has no thread that could wait for inotify(7).

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use peername_sys::Result;
use peername_sys::fs::inotify::DirectoryWatch;
use peername_sys::process::stderr::try_write_line;

/// The watch of the policies' files: of their directories, as an editor replaces a file, and a ConfigMap a symbolic link.
#[derive(Debug)]
pub(super) struct PolicyWatch {
    directories: DirectoryWatch,
    /// When the files are compared.
    pub(super) due: Option<Instant>,
}

impl PolicyWatch {
    /// Watches nothing yet.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            directories: DirectoryWatch::new()?,
            due: None,
        })
    }

    /// Watches these directories, too, of files that have just been read: they may have changed since.
    pub(super) fn add(&mut self, directories: &BTreeSet<PathBuf>) {
        for directory in directories {
            if let Err(error) = self.directories.add_for_changes(directory) {
                try_write_line(&format!(
                    "peername: --watch: can't watch {}, use SIGHUP: {error}",
                    directory.display()
                ));
            }
        }
        self.due = Some(Instant::now() + QUIET);
    }

    /// Notes the events so far.
    pub(super) fn note(&mut self) {
        self.directories.drain();
        self.due.get_or_insert_with(|| Instant::now() + QUIET);
    }

    /// Compares the files, if that is due. An event may be that of another file.
    pub(super) fn is_reload_due(&mut self, now: Instant, are_current: impl Fn() -> bool) -> bool {
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

/// From the first event on: files that belong together are written one after the other.
const QUIET: Duration = Duration::from_millis(500);
