//! The sockets of the host that the program may connect to (`--allow-unix`).

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use peername_sys::fs::{FileId, is_writable, open_path};
use peername_sys::process::user;

/// The sockets that exist now, by their inodes, and the paths at which services may bind new ones.
///
/// New sockets are allowed only at paths that the program can't change: elsewhere it could rename to there any socket that its user
/// may rename.
#[derive(Debug)]
pub struct AllowedSockets {
    pinned: HashSet<FileId>,
    /// Held open: the number of a file that exists is not given to another one.
    files: Vec<OwnedFd>,
    watched: Vec<PathBuf>,
}

impl AllowedSockets {
    /// Finds the sockets at these paths, and in these directories. To be called as the user that the program will be.
    ///
    /// # Errors
    ///
    /// Nothing is at a path, or it can't be reached, or is neither a socket nor a directory: the path, and why.
    pub fn find(paths: &[PathBuf]) -> Result<Self, (PathBuf, io::Error)> {
        let mut found = Vec::new();
        let mut watched = Vec::new();
        for path in paths {
            let failed = |error| (path.clone(), error);
            let path = path.canonicalize().map_err(failed)?;
            let kind = path.symlink_metadata().map_err(failed)?.file_type();
            if !kind.is_dir() && !kind.is_socket() {
                return Err(failed(io::Error::other("neither a socket nor a directory")));
            }
            collect(&path, &mut |_, file| found.push(file.into()));
            if is_fixed(&path) {
                watched.push(path);
            }
        }
        Ok(Self::from_parts(found, watched))
    }

    /// The parts, for a process that is forked: descriptors, and paths.
    pub(super) fn into_parts(self) -> (Vec<OwnedFd>, Vec<PathBuf>) {
        (self.files, self.watched)
    }

    pub(super) fn from_parts(files: Vec<OwnedFd>, watched: Vec<PathBuf>) -> Self {
        let about = |file: &OwnedFd| File::from(file.try_clone().ok()?).metadata().ok();
        Self {
            pinned: files
                .iter()
                .filter_map(about)
                .map(|about| FileId::from(&about))
                .collect(),
            files,
            watched,
        }
    }

    pub(super) fn has(&self, about: &Metadata) -> bool {
        self.pinned.contains(&FileId::from(about)) || self.has_appeared(about)
    }

    fn has_appeared(&self, wanted: &Metadata) -> bool {
        let mut is_found = false;
        for path in &self.watched {
            collect(path, &mut |directory, file| {
                let is_it = file
                    .metadata()
                    .is_ok_and(|about| FileId::from(&about) == FileId::from(wanted));
                is_found |= is_it && is_fixed(directory);
            });
        }
        is_found
    }
}

/// Opens each socket at this path or below it, with the directory that it is in.
fn collect(path: &Path, take: &mut impl FnMut(&Path, File)) {
    let mut left = vec![path.to_owned()];
    let mut budget = MAX_ENTRIES;
    while let Some(path) = left.pop() {
        let Ok(about) = path.symlink_metadata() else {
            continue;
        };
        if about.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            let before = left.len();
            left.extend(entries.take(budget).map(|entry| entry.path()));
            budget -= left.len() - before;
        } else if about.file_type().is_socket()
            && let Ok(file) = open_path(&path)
        {
            take(path.parent().unwrap_or(&path), file);
        }
    }
}

/// Whether the program's user may write neither to the path nor to a directory above it, and owns none of them, whose mode it could
/// change.
fn is_fixed(path: &Path) -> bool {
    let is_own = |above: &Path| {
        let about = above.metadata();
        about.is_ok_and(|about| about.uid() == user::effective_uid())
    };
    let is_open = |above: &Path| above.is_dir() && (is_writable(above) || is_own(above));
    !user::is_root() && !path.ancestors().any(is_open)
}

/// Of one directory of `--allow-unix`, with those below it.
const MAX_ENTRIES: usize = 10_000;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_of_a_directory_are_found_and_those_that_are_moved_there_are_not() {
        let dir = std::env::temp_dir().join(format!("peername-allowed-{}", std::process::id()));
        let shared = dir.join("shared");
        fs::create_dir_all(&shared).unwrap();
        let _inside = UnixListener::bind(shared.join("inside")).unwrap();
        let _outside = UnixListener::bind(dir.join("outside")).unwrap();
        let allowed = AllowedSockets::find(std::slice::from_ref(&shared)).unwrap();
        let has = |path: &Path| allowed.has(&fs::metadata(path).unwrap());
        assert!(has(&shared.join("inside")));
        assert!(!has(&dir.join("outside")));
        fs::rename(dir.join("outside"), shared.join("moved")).unwrap();
        assert!(!has(&shared.join("moved")));
        let missing = AllowedSockets::find(&[dir.join("missing")]);
        assert_eq!(missing.unwrap_err().1.kind(), io::ErrorKind::NotFound);
        fs::remove_dir_all(&dir).unwrap();
    }
}
