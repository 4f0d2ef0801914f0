//! File systems whose files reach outside of the jail: a lookup in autofs makes a program outside mount something, maybe from
//! the network; afs is a network file system of the kernel; and a file of mqueue is a message queue of the host.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use peername_sys::fs::mounts;

use super::mount_table::Mount;
use super::private_dir::PrivateDir;
use crate::JailError;

/// A mount that is covered by a copy: an otherwise empty directory with the mounts that are below the original.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KernelMount {
    point: PathBuf,
    copy: PathBuf,
    /// The mounts below, which are kept visible.
    below: Vec<MountBelow>,
}

/// A mount below a covered one, and the directory of the copy at which it is bound.
#[derive(Debug, PartialEq, Eq)]
struct MountBelow {
    point: PathBuf,
    copy: PathBuf,
}

/// Finds the mounts of these file systems, and creates the directories that will cover them. Mounts that another one hides
/// entirely are left out.
pub(super) fn find(dir: &PrivateDir, all: &[Mount]) -> Result<Vec<KernelMount>, JailError> {
    let mut found = Vec::new();
    for (index, mount) in all
        .iter()
        .enumerate()
        .filter(|(_, mount)| mount.is_one_of(&COVERED))
    {
        let later = all.iter().skip(index + 1).map(|later| &later.point);
        if later.clone().any(|point| mount.point.starts_with(point)) {
            continue;
        }
        let copy = dir.create_copy_dir(&format!("mount-{index}"))?;
        let mut covered = KernelMount {
            point: mount.point.clone(),
            copy,
            below: Vec::new(),
        };
        for point in later.filter(|point| point.starts_with(&mount.point)) {
            covered
                .keep(point)
                .map_err(|error| JailError::write(point, error))?;
        }
        found.push(covered);
    }
    Ok(found)
}

impl KernelMount {
    /// Keeps what is mounted at `point` visible, with all that is below it.
    fn keep(&mut self, point: &Path) -> io::Result<()> {
        let is_kept = self.below.iter().any(|kept| point.starts_with(&kept.point));
        if let Ok(name) = point.strip_prefix(&self.point)
            && !is_kept
        {
            let copy = self.copy.join(name);
            fs::create_dir_all(&copy)?;
            self.below.push(MountBelow {
                point: point.to_owned(),
                copy,
            });
        }
        Ok(())
    }

    pub(super) fn cover(&self) -> Result<(), JailError> {
        for below in &self.below {
            mounts::bind_recursively_over(&below.copy, &below.point)
                .map_err(|source| JailError::cover(&below.point, source))?;
        }
        match mounts::bind_recursively_over(&self.point, &self.copy) {
            // A directory above the mount can't be searched: the program does not reach the mount either.
            Err(error) if error.is_permission() && self.point.symlink_metadata().is_err() => Ok(()),
            covered => covered.map_err(|source| JailError::cover(&self.point, source)),
        }
    }
}

const COVERED: [&str; 3] = ["autofs", "afs", "mqueue"];
