//! The sockets that processes of the jail have bound, as files.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;

/// The files, held open: the number of a file that exists is not given to another one.
#[derive(Debug, Default)]
pub(super) struct BoundSockets(HashMap<FileId, File>);

/// A file system and a file in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl BoundSockets {
    /// Adds the file of a socket that was just bound. Returns `false` if there are too many.
    pub(super) fn insert(&mut self, file: File) -> bool {
        if self.0.len() >= MAX {
            // No path leads to those that were removed.
            self.0
                .retain(|_, file| file.metadata().is_ok_and(|about| about.nlink() > 0));
        }
        let Some(id) = file.metadata().ok().as_ref().map(FileId::of) else {
            return false;
        };
        let fits = self.0.len() < MAX;
        if fits {
            self.0.insert(id, file);
        }
        fits
    }

    pub(super) fn has(&self, about: &Metadata) -> bool {
        self.0.contains_key(&FileId::of(about))
    }
}

impl FileId {
    pub(super) fn of(about: &Metadata) -> Self {
        Self {
            device: about.dev(),
            inode: about.ino(),
        }
    }
}

/// Of files that exist; each takes a descriptor.
const MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn socket_is_known_as_a_file_whatever_its_path_is() {
        let dir = std::env::temp_dir().join(format!("peername-bound-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (own, other) = (dir.join("own"), dir.join("other"));
        let _own = UnixListener::bind(&own).unwrap();
        let _other = UnixListener::bind(&other).unwrap();
        let mut bound = BoundSockets::default();
        assert!(bound.insert(peername_sys::fs::open_path(&own).unwrap()));
        let is_known = |bound: &BoundSockets| bound.has(&std::fs::metadata(&own).unwrap());
        assert!(is_known(&bound));
        std::fs::rename(&other, &own).unwrap();
        assert!(!is_known(&bound));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
