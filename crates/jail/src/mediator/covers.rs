//! Covers files again that are replaced outside: rename(2) over a file removes what is mounted on it, in every namespace.
//!
//! The program's mount namespace receives mounts of this one (MS_SLAVE). Until the cover is back, the program sees the new file:
//! for files that a program needs, not for those that it must not see.

use std::fs::Metadata;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use peername_sys::Result;
use peername_sys::fs::inotify::DirectoryWatch;
use peername_sys::fs::mounts;
use peername_sys::fs::{FileId, open_path, open_path_without_links};
use peername_sys::process::caps::{CapabilitySet, set_effective};

use super::caller::IDLE;
use crate::files::Cover;

/// Covered files, and their directories, which are watched.
#[derive(Debug)]
pub(super) struct WatchedCovers {
    directories: DirectoryWatch,
    covers: Vec<Cover>,
}

impl WatchedCovers {
    /// Watches the directories of these files. `None` beyond the limits of inotify(7): covers don't come back then.
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
            // The program may have replaced it by a file that can't be covered.
            let _ = cover.restore();
        }
        set_effective(IDLE)
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
        // A link would cover what the program chooses.
        let file = open_path_without_links(&self.original)?;
        let (there, cover) = (file.metadata()?, open_path(&self.copy)?.metadata()?);
        if there.is_file() && !is_same(&there, &cover) {
            let target = format!("/proc/self/fd/{}", file.as_raw_fd());
            let mounted = mounts::bind_over(Path::new(&target), &self.copy);
            mounted.map_err(|error| error.source)?;
        }
        Ok(())
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    FileId::from(one) == FileId::from(other)
}
