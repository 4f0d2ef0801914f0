//! A file that lines are appended to, and that a rotation replaces.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

/// A file that lines are appended to. Clones write into the same file, also after it was replaced.
#[derive(Clone, Debug)]
pub struct LogFile(Arc<RwLock<File>>);

impl LogFile {
    /// Opens a file for appending. A new one may be read and written by its owner alone.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    pub fn open_file(path: &Path) -> io::Result<File> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
    }

    /// Appends to this file, which was opened for appending.
    pub fn new(file: File) -> Self {
        Self(Arc::new(RwLock::new(file)))
    }

    /// Appends to this file from now on.
    pub fn replace(&self, file: File) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = file;
    }

    /// Appends the bytes by one write(2), and returns how many of them were written.
    ///
    /// # Errors
    ///
    /// Those of write(2).
    pub fn append(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut file: &File = &self.0.read().unwrap_or_else(PoisonError::into_inner);
        file.write(bytes)
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
