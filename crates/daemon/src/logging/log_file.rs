//! A file that lines are appended to, and that a rotation replaces.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use peername_sys::fs::NONBLOCK;

/// A file that lines are appended to. Clones write into the same file, also after it was replaced.
#[derive(Clone, Debug)]
pub struct LogFile {
    file: Arc<RwLock<File>>,
    /// Where the file is opened again once it is removed; `None` if this process may not open it.
    path: Option<PathBuf>,
}

impl LogFile {
    /// Opens a file for appending. A new one may be read and written by its owner alone. A write to a pipe that is full fails
    /// instead of waiting for its reader.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    pub fn open_file(path: &Path) -> io::Result<File> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(NONBLOCK)
            .open(path)
    }

    /// Appends to this file, which was opened for appending. Once no directory names it any more, it is opened again by `path`.
    pub fn new(file: File, path: Option<&Path>) -> Self {
        Self {
            file: Arc::new(RwLock::new(file)),
            path: path.map(Path::to_owned),
        }
    }

    /// Appends to this file from now on.
    pub fn replace(&self, file: File) {
        *self.file.write().unwrap_or_else(PoisonError::into_inner) = file;
    }

    /// Appends the bytes by one write(2), and returns how many of them were written.
    ///
    /// # Errors
    ///
    /// Those of write(2), and those of open(2) where the file was removed.
    pub fn append(&self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(path) = &self.path
            && self.is_removed()?
        {
            self.replace(Self::open_file(path)?);
        }
        let mut file: &File = &self.file.read().unwrap_or_else(PoisonError::into_inner);
        file.write(bytes)
    }

    fn is_removed(&self) -> io::Result<bool> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        Ok(file.metadata()?.nlink() == 0)
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
