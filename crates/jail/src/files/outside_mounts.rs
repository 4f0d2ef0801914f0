//! File systems whose files reach outside of the jail: a lookup in autofs makes a program outside mount something, maybe from
//! the network; afs is a network file system of the kernel; and a file of mqueue is a message queue of the host.

use std::fs;
use std::path::{Path, PathBuf};

use peername_sys::fs::mounts;

use super::mount_table::Mount;
use super::private_dir::PrivateDir;
use crate::JailError;

/// A mount that is covered by a copy: an otherwise empty directory with the mounts that are below the original.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutsideMount {
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

/// Finds the visible mounts of these file systems, and creates the directories that will cover them.
pub(super) fn prepare(dir: &PrivateDir, all: &[Mount]) -> Result<Vec<OutsideMount>, JailError> {
    let mut prepared = Vec::new();
    for (index, mount) in all.iter().enumerate() {
        let later = all.get(index + 1..).unwrap_or_default();
        if !mount.is_one_of(&COVERED) || mount.is_hidden(all) {
            continue;
        }
        let mut covered = OutsideMount {
            point: mount.point.clone(),
            copy: dir.create_copy_dir(&format!("mount-{index}"))?,
            below: Vec::new(),
        };
        // A mount below is made after the one that it is on. One that was moved there is covered, too.
        for other in later {
            if let Ok(name) = other.point.strip_prefix(&mount.point) {
                covered.keep(&other.point, name)?;
            }
        }
        prepared.push(covered);
    }
    Ok(prepared)
}

impl OutsideMount {
    /// Keeps the mount at `point` visible, and all below it. `name` is its path relative to this mount.
    fn keep(&mut self, point: &Path, name: &Path) -> Result<(), JailError> {
        if self.below.iter().any(|kept| point.starts_with(&kept.point)) {
            return Ok(());
        }
        let copy = self.copy.join(name);
        fs::create_dir_all(&copy).map_err(|error| JailError::write(&copy, error))?;
        self.below.push(MountBelow {
            point: point.to_owned(),
            copy,
        });
        Ok(())
    }

    pub(super) fn cover(&self) -> Result<(), JailError> {
        for below in &self.below {
            unless_out_of_reach(
                &below.point,
                mounts::bind_recursively_over(&below.copy, &below.point),
            )?;
        }
        unless_out_of_reach(
            &self.point,
            mounts::bind_recursively_over(&self.point, &self.copy),
        )
    }
}

/// Ignores the error of a bind where a directory above the mount can't be searched: the program does not reach the mount either.
/// lstat(2) only after the error: on a mount point in reach it may ask the automounter.
fn unless_out_of_reach(point: &Path, bound: peername_sys::Result<()>) -> Result<(), JailError> {
    match bound {
        Err(error) if error.is_permission() && point.symlink_metadata().is_err() => Ok(()),
        bound => bound.map_err(|source| JailError::cover(point, source)),
    }
}

const COVERED: [&str; 3] = ["autofs", "afs", "mqueue"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_directory_of_the_copy() {
        let mut covered = OutsideMount {
            point: "/auto".into(),
            copy: "/proc/missing".into(),
            below: Vec::new(),
        };
        let kept = covered.keep(Path::new("/auto/home"), Path::new("home"));
        let error = kept.unwrap_err().to_string();
        assert!(error.contains("/proc/missing/home"), "{error}");
    }
}
