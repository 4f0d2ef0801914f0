//! A pipe that holds one record, for other processes of the same user to read as often as they like.
//!
//! It has no name that another user could connect to: a reader opens it by /proc/PID/fd, which takes the same permission as
//! to read the process's memory map (PTRACE_MODE_READ, ptrace(2)). A reader copies the record by tee(2) and leaves it there.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, tee};

use crate::{NameCall, Result};

/// The pipe, in the process that writes its record.
#[derive(Debug)]
pub struct RecordPipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

/// The pipe of another process, in a process that reads its record. The record stays readable after the writer has exited.
#[derive(Debug)]
pub struct RecordReader {
    pipe: OwnedFd,
    /// A pipe of the reader's own, into which tee(2) copies the record.
    copy: RecordPipe,
}

impl RecordPipe {
    /// Opens an empty pipe, in packet mode (O_DIRECT, since Linux 3.4), by which [`RecordReader::of_process`] finds it.
    pub fn new() -> Result<Self> {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK | PipeFlags::DIRECT;
        let (reader, writer) = pipe_with(flags).call("pipe2(2)")?;
        Ok(Self { reader, writer })
    }

    /// Replaces the record. What exceeds [`MAX_RECORD`] is lost.
    ///
    /// # Errors
    ///
    /// EAGAIN where the pipe has no space, because another process writes to it, too.
    pub fn replace(&self, record: &[u8]) -> Result<()> {
        self.take()?;
        let record = record.get(..MAX_RECORD).unwrap_or(record);
        write(&self.writer, record).map(drop).call("write(2)")
    }

    /// Takes what the pipe holds: the last record in it, or nothing.
    fn take(&self) -> Result<Vec<u8>> {
        let mut last = Vec::new();
        loop {
            let mut buffer = vec![0; MAX_RECORD];
            match read(&self.reader, &mut buffer) {
                Ok(len) => {
                    buffer.truncate(len);
                    last = buffer;
                }
                Err(Errno::AGAIN) => return Ok(last),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).call("read(2)"),
            }
        }
    }
}

impl RecordReader {
    /// Opens every pipe in packet mode that a process has open.
    ///
    /// # Errors
    ///
    /// ENOENT where there is no such process, EACCES without permission.
    pub fn of_process(pid: u32) -> io::Result<Vec<Self>> {
        let process = Path::new("/proc").join(pid.to_string());
        let mut readers = Vec::new();
        for entry in fs::read_dir(process.join("fd"))? {
            let number = entry?.file_name();
            if is_packet_pipe(&process, Path::new(&number)) {
                let mut options = OpenOptions::new();
                options.read(true).custom_flags(libc::O_NONBLOCK);
                readers.push(Self {
                    pipe: options.open(process.join("fd").join(&number))?.into(),
                    copy: RecordPipe::new().map_err(|error| error.source)?,
                });
            }
        }
        Ok(readers)
    }

    /// Copies the record; `None` where there is none now: the process has not written one, is replacing it, or has exited without
    /// one. `None` also if a signal interrupts tee(2).
    pub fn read(&self) -> Result<Option<Vec<u8>>> {
        match tee(
            &self.pipe,
            &self.copy.writer,
            MAX_RECORD,
            SpliceFlags::NONBLOCK,
        ) {
            Ok(0) | Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Ok(_) => self.copy.take().map(Some),
            Err(error) => Err(error).call("tee(2)"),
        }
    }
}

/// Whether descriptor `number` of a process is a pipe in packet mode (O_DIRECT). `process` is the directory of the process in
/// /proc.
fn is_packet_pipe(process: &Path, number: &Path) -> bool {
    let is_pipe = fs::read_link(process.join("fd").join(number))
        .is_ok_and(|link| link.to_string_lossy().starts_with("pipe:"));
    let flags = || {
        let info = fs::read_to_string(process.join("fdinfo").join(number)).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        i32::from_str_radix(flags.trim(), 8).ok()
    };
    is_pipe && flags().is_some_and(|flags| flags & libc::O_DIRECT != 0)
}

/// The largest packet of a pipe in bytes (PIPE_BUF, pipe(7)).
pub const MAX_RECORD: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_again_and_again_until_it_is_replaced() {
        let pipe = RecordPipe::new().unwrap();
        let readers = RecordReader::of_process(std::process::id()).unwrap();
        let reader = readers.first().unwrap();
        assert_eq!(reader.read().unwrap(), None);
        for record in [&b"first"[..], b"second", &[b'x'; MAX_RECORD + 1]] {
            pipe.replace(record).unwrap();
            let expected = record.get(..MAX_RECORD).unwrap_or(record);
            for _ in 0..3 {
                assert_eq!(reader.read().unwrap().unwrap(), expected);
            }
        }
        drop(pipe);
        assert_eq!(reader.read().unwrap().unwrap().len(), MAX_RECORD);
    }
}
