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
    /// The line in which a short write has stopped, as on a full disk; for a line that is given up, only its line break. Its end
    /// is written before the next line, so that two records never share a line.
    cut_line: Vec<u8>,
    /// How much of it is written.
    written: usize,
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
            open: Arc::new(Mutex::new(OpenLog {
                file,
                cut_line: Vec::new(),
                written: 0,
            })),
            path: path.map(Path::to_owned),
        }
    }

    /// Appends to this file from now on.
    pub fn replace(&self, file: File) {
        let mut log = self.lock();
        let _ = log.end_line();
        log.switch_to(file);
        let _ = log.end_line();
    }

    /// Appends a line with its line break by one write(2), which O_APPEND keeps whole. If only a part can be written, a line
    /// break will end it.
    pub fn append_line(&self, line: &[u8]) -> io::Result<()> {
        let mut log = self.lock_at_line_start()?;
        let length = log.file.write(line)?;
        let rest = line.get(length..).unwrap_or_default();
        // The second write returns the error because of which the first one was short.
        log.file.write_all(rest).inspect_err(|_| {
            log.cut_line = b"\n".to_vec();
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
            log.switch_to(Self::open_file(path)?);
        }
        log.end_line()?;
        Ok(log)
    }
}

impl OpenLog {
    /// Ends the line in which the last write has stopped.
    fn end_line(&mut self) -> io::Result<()> {
        while self.written < self.cut_line.len() {
            let length = self.file.write(&self.cut_line[self.written..])?;
            if length == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.written += length;
        }
        self.cut_line.clear();
        self.written = 0;
        Ok(())
    }

    /// Whether more than the line break is missing at the end of the line in which the last write has stopped.
    fn is_line_cut(&self) -> bool {
        self.cut_line.len() > self.written + 1
    }

    /// Appends to another file from now on, to which a cut line will be written as a whole. Its fragment stays in the old file.
    fn switch_to(&mut self, file: File) {
        if !self.is_line_cut() {
            self.cut_line.clear();
        }
        self.written = 0;
        self.file = file;
    }
}

impl Write for LogFile {
    /// Writes lines. Takes whole ones: the end of a line that is written in part is kept for the next write.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut log = self.lock_at_line_start()?;
        let length = log.file.write(lines)?;
        let (written, rest) = lines.split_at(length);
        let is_line_break = |&byte: &u8| byte == b'\n';
        let start = written.iter().rposition(is_line_break);
        let start = start.map_or(0, |line_break| line_break + 1);
        if start == length {
            return Ok(length);
        }
        let end = rest.iter().position(is_line_break);
        let end = end.map_or(lines.len(), |line_break| length + line_break + 1);
        log.cut_line = lines[start..end].to_vec();
        log.written = length - start;
        Ok(end)
    }

    /// Fails as long as a part of a line that was taken can't be written.
    fn flush(&mut self) -> io::Result<()> {
        let mut log = self.lock();
        let ended = log.end_line();
        if log.is_line_cut() { ended } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{PipeReader, Read, pipe};
    use std::os::fd::AsRawFd;

    use super::*;

    /// A log whose reader does not read, so that a long write is short.
    fn slow_pipe() -> (PipeReader, LogFile) {
        let (reader, writer) = pipe().unwrap();
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        let file = LogFile::open_file(Path::new(&path)).unwrap();
        (reader, LogFile::new(file, None))
    }

    /// A pipe takes a part of a batch while its reader is slow. The other writer of the log must not write into a line of it.
    #[test]
    fn line_of_a_short_write_is_ended_before_another_line() {
        let (mut reader, log) = slow_pipe();
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

    /// A rotation while the end of a line can't be written.
    #[test]
    fn line_of_a_short_write_is_whole_in_the_next_file() {
        let (_reader, mut log) = slow_pipe();
        let line = format!("{}\n", "x".repeat(999));
        let batch = line.repeat(1000);
        assert!(log.write(batch.as_bytes()).unwrap() < batch.len());
        log.flush().expect_err("the end of the line is not written");
        log.replace(LogFile::open_file(Path::new("/dev/full")).unwrap());
        log.flush().expect_err("the line is not written");
        let next = tempfile::NamedTempFile::new().unwrap();
        log.replace(LogFile::open_file(next.path()).unwrap());
        log.append_line(b"admitted\n").unwrap();
        let text = fs::read_to_string(next.path()).unwrap();
        assert_eq!(text, line + "admitted\n");
    }

    /// Its request is denied.
    #[test]
    fn line_that_could_not_be_appended_is_in_no_other_file() {
        let (_reader, mut log) = slow_pipe();
        log.append_line(&[b'x'; 1 << 20]).unwrap_err();
        log.flush().expect("no line that was taken");
        let next = tempfile::NamedTempFile::new().unwrap();
        log.replace(LogFile::open_file(next.path()).unwrap());
        log.append_line(b"admitted\n").unwrap();
        assert_eq!(fs::read_to_string(next.path()).unwrap(), "admitted\n");
    }
}
