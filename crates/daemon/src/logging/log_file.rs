//! A file that lines are appended to, and that a rotation replaces.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use peername_sys::fs::NONBLOCK;

/// A file that lines are appended to. Clones write into the same file, also after it was replaced, and end each other's lines.
#[derive(Clone, Debug)]
pub struct LogFile {
    open: Arc<Mutex<OpenLog>>,
    /// Where the file is opened again once it is removed; `None` if this process may not open it.
    path: Option<PathBuf>,
}

/// The open file. It is locked during a write.
#[derive(Debug)]
struct OpenLog {
    file: File,
    /// The end of the line in which a short write has stopped, as on a full disk. It is written before the next line, so that
    /// two records never share a line.
    line_end: Vec<u8>,
}

impl LogFile {
    /// Opens a file for appending. A new one may be read and written by its owner alone. A write to a pipe that is full fails
    /// instead of waiting for its reader.
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
            open: Arc::new(Mutex::new(OpenLog::new(file))),
            path: path.map(Path::to_owned),
        }
    }

    /// Appends to this file from now on.
    pub fn replace(&self, file: File) {
        let mut log = self.lock();
        // If that fails, the fragment stays in the file that was moved away.
        let _ = log.end_line();
        *log = OpenLog::new(file);
    }

    /// Appends a line with its line break by one write(2), which O_APPEND keeps whole. If only a part can be written, a line
    /// break will end it.
    ///
    /// # Errors
    ///
    /// Those of write(2), and those of open(2) where the file was removed.
    pub fn append_line(&self, line: &[u8]) -> io::Result<()> {
        let mut log = self.lock_at_line_start()?;
        let length = log.file.write(line)?;
        let rest = line.get(length..).unwrap_or_default();
        // The second write returns the error because of which the first one was short.
        log.file.write_all(rest).inspect_err(|_| {
            log.line_end = b"\n".to_vec();
        })
    }

    fn lock(&self) -> MutexGuard<'_, OpenLog> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the file at the start of a line. Opens it again if it was removed.
    fn lock_at_line_start(&self) -> io::Result<MutexGuard<'_, OpenLog>> {
        let mut log = self.lock();
        if let Some(path) = &self.path
            && log.file.metadata()?.nlink() == 0
        {
            *log = OpenLog::new(Self::open_file(path)?);
        }
        log.end_line()?;
        Ok(log)
    }
}

impl OpenLog {
    fn new(file: File) -> Self {
        Self {
            file,
            line_end: Vec::new(),
        }
    }

    /// Ends the line in which the last write has stopped.
    fn end_line(&mut self) -> io::Result<()> {
        while !self.line_end.is_empty() {
            let length = self.file.write(&self.line_end)?;
            if length == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.line_end.drain(..length);
        }
        Ok(())
    }
}

impl Write for LogFile {
    /// Writes lines. Takes whole ones: the end of a line that is written in part is kept for the next write.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut log = self.lock_at_line_start()?;
        let length = log.file.write(lines)?;
        let (written, rest) = lines.split_at(length);
        if written.ends_with(b"\n") {
            return Ok(length);
        }
        let mut rest = rest.split_inclusive(|&byte| byte == b'\n');
        log.line_end = rest.next().unwrap_or_default().to_vec();
        Ok(length + log.line_end.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lock().end_line()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, pipe};
    use std::os::fd::AsRawFd;

    use super::*;

    /// A pipe takes a part of a batch while its reader is slow. The other writer of the log must not write into a line of it.
    #[test]
    fn line_of_a_short_write_is_ended_before_another_line() {
        let (mut reader, writer) = pipe().unwrap();
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        let log = LogFile::new(LogFile::open_file(Path::new(&path)).unwrap(), None);
        let line = format!("{}\n", "x".repeat(999));
        let batch = line.repeat(1000);
        let taken = log.clone().write(batch.as_bytes()).unwrap();
        assert_eq!(taken % line.len(), 0, "whole lines");
        assert!(taken < batch.len());
        let full = log.append_line(b"admitted\n").unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let mut read = vec![0; taken - line.len()];
        reader.read_exact(&mut read).unwrap();
        log.append_line(b"admitted\n").unwrap();
        let mut end = vec![0; line.len() + "admitted\n".len()];
        reader.read_exact(&mut end).unwrap();
        assert_eq!(String::from_utf8(end).unwrap(), line + "admitted\n");
    }
}
