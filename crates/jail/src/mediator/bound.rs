//! The sockets that processes of the jail have bound, as files.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;

use peername_sys::fs::FileId;

/// The files, held open: the inode number of an open file is not given to another one.
#[derive(Debug)]
pub(super) struct BoundSockets {
    files: HashMap<FileId, File>,
    max: usize,
}

impl BoundSockets {
    /// `max_open` is the limit of open files of this process: half of it stays for the calls.
    pub(super) fn new(max_open: u64) -> Self {
        Self {
            files: HashMap::new(),
            max: usize::try_from(max_open / 2)
                .unwrap_or(MAX_FILES)
                .min(MAX_FILES),
        }
    }

    /// Adds the file of a socket that was just bound. Returns `false` if there are too many.
    pub(super) fn insert(&mut self, file: File) -> bool {
        if self.files.len() >= self.max {
            // No path leads to files that were removed.
            self.files
                .retain(|_, file| file.metadata().is_ok_and(|metadata| metadata.nlink() > 0));
        }
        let Ok(metadata) = file.metadata() else {
            return false;
        };
        let fits = self.files.len() < self.max;
        if fits {
            self.files.insert(FileId::from(&metadata), file);
        }
        fits
    }

    pub(super) fn contains(&self, metadata: &Metadata) -> bool {
        self.files.contains_key(&FileId::from(metadata))
    }
}

/// Each takes a descriptor of the mediator.
const MAX_FILES: usize = 8192;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn socket_is_known_as_a_file_whatever_its_path_is() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (dir.path().join("own"), dir.path().join("other"));
        let _own = UnixListener::bind(&own).unwrap();
        let _other = UnixListener::bind(&other).unwrap();
        let mut bound = BoundSockets::new(1024);
        assert!(bound.insert(peername_sys::fs::open_path(&own).unwrap()));
        let is_known = |bound: &BoundSockets| bound.contains(&std::fs::metadata(&own).unwrap());
        assert!(is_known(&bound));
        std::fs::rename(&other, &own).unwrap();
        assert!(!is_known(&bound));
    }
}
