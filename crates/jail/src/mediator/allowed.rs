//! The sockets of the host that the program may connect to (`--allow-unix`).

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use peername_sys::fs::{FileId, is_replaceable, open_path};

/// The sockets that exist now, by their inodes, and the paths at which services may bind new ones.
///
/// New sockets are allowed only at paths that the program can't change: to other paths, the program could move any socket that
/// its user may rename.
#[derive(Debug)]
pub struct AllowedSockets {
    pinned: HashSet<FileId>,
    /// Held open: the inode number of an open file is not given to another one.
    files: Vec<OwnedFd>,
    watched: Vec<PathBuf>,
}

impl AllowedSockets {
    /// Finds the sockets at these paths, and in these directories. Call this as the user that the program will run as.
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
            for_each_socket(&path, &mut |_, file| found.push(file.into()));
            if !is_replaceable(&path) {
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
        Self {
            pinned: files
                .iter()
                .filter_map(|file| File::from(file.try_clone().ok()?).metadata().ok())
                .map(|metadata| FileId::from(&metadata))
                .collect(),
            files,
            watched,
        }
    }

    pub(super) fn contains(&self, metadata: &Metadata) -> bool {
        let socket = FileId::from(metadata);
        self.pinned.contains(&socket) || self.has_appeared(&socket)
    }

    /// Whether this socket was bound, since [`AllowedSockets::find`], at a watched path that the program can't change.
    fn has_appeared(&self, wanted: &FileId) -> bool {
        let mut is_found = false;
        for path in &self.watched {
            for_each_socket(path, &mut |directory, file| {
                let is_wanted = file
                    .metadata()
                    .is_ok_and(|metadata| FileId::from(&metadata) == *wanted);
                is_found |= is_wanted && !is_replaceable(directory);
            });
        }
        is_found
    }
}

/// Calls `visit` with each socket at this path or below it, and with the directory that the socket is in.
fn for_each_socket(path: &Path, visit: &mut impl FnMut(&Path, File)) {
    let mut unvisited = vec![path.to_owned()];
    let mut budget = MAX_ENTRIES;
    while let Some(path) = unvisited.pop() {
        let Ok(metadata) = path.symlink_metadata() else {
            continue;
        };
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            let before = unvisited.len();
            unvisited.extend(entries.take(budget).map(|entry| entry.path()));
            budget -= unvisited.len() - before;
        } else if metadata.file_type().is_socket()
            && let Ok(file) = open_path(&path)
        {
            visit(path.parent().unwrap_or(&path), file);
        }
    }
}

/// Entries that are visited below one path of `--allow-unix`.
const MAX_ENTRIES: usize = 10_000;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_of_a_directory_are_found_and_those_that_are_moved_there_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let [shared, outside] = ["shared", "outside"].map(|name| dir.path().join(name));
        fs::create_dir(&shared).unwrap();
        let _inside = UnixListener::bind(shared.join("inside")).unwrap();
        let _outside = UnixListener::bind(&outside).unwrap();
        let allowed = AllowedSockets::find(std::slice::from_ref(&shared)).unwrap();
        let has = |path: &Path| allowed.contains(&fs::metadata(path).unwrap());
        assert!(has(&shared.join("inside")));
        assert!(!has(&outside));
        fs::rename(&outside, shared.join("moved")).unwrap();
        assert!(!has(&shared.join("moved")));
        let missing = AllowedSockets::find(&[dir.path().join("missing")]);
        assert_eq!(missing.unwrap_err().1.kind(), io::ErrorKind::NotFound);
    }
}
