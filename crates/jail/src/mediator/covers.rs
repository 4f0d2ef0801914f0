//! Covers files again that are replaced outside: rename(2) over a file removes what is mounted on it, in every namespace.
//!
//! The program's mount namespace receives mounts of this one (MS_SLAVE). Until the cover is back, the program sees the new
//! file. So this is for files that a program needs, not for files that it must not see.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use peername_sys::Result;
use peername_sys::fs::inotify::DirectoryWatch;
use peername_sys::fs::mounts;
use peername_sys::fs::{FileId, open_path, open_path_without_links};
use peername_sys::process::caps::{CapabilitySet, set_effective};

use super::caller::IDLE_CAPABILITIES;
use crate::files::Cover;

/// Covered files, and their directories, which are watched.
#[derive(Debug)]
pub(super) struct WatchedCovers {
    directories: DirectoryWatch,
    covers: Vec<Cover>,
}

impl WatchedCovers {
    /// Watches the directories of these files. Returns `None` beyond the limits of inotify(7): then covers don't come back.
    pub(super) fn new(mut covers: Vec<Cover>) -> Option<Self> {
        let directories = DirectoryWatch::new().ok()?;
        covers.retain(|cover| {
            let directory = cover.original.parent();
            directory.is_some_and(|directory| directories.add(directory).is_ok())
        });
        Some(Self {
            directories,
            covers,
        })
    }

    /// Covers the files again that were replaced.
    ///
    /// # Errors
    ///
    /// The capabilities of this process can't be changed.
    pub(super) fn restore(&self) -> Result<()> {
        self.directories.drain();
        set_effective(CapabilitySet::SYS_ADMIN)?;
        for cover in &self.covers {
            // The program may have put a file there that can't be covered.
            let _ = cover.restore();
        }
        set_effective(IDLE_CAPABILITIES)
    }
}

impl AsFd for WatchedCovers {
    /// Readable when a cover may be gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directories.as_fd()
    }
}

impl Cover {
    fn restore(&self) -> std::io::Result<()> {
        // The program could make a link lead to any file, which would be covered then.
        let file = open_path_without_links(&self.original)?;
        let (visible, copy) = (file.metadata()?, open_path(&self.copy)?.metadata()?);
        let is_covered = FileId::from(&visible) == FileId::from(&copy);
        if visible.is_file() && !is_covered {
            let target = format!("/proc/self/fd/{}", file.as_raw_fd());
            mounts::bind_over(Path::new(&target), &self.copy).map_err(|error| error.source)?;
        }
        Ok(())
    }
}
