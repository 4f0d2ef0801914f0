//! Batches log lines, for fewer system calls and wake-ups.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// A buffered writer for the thread that writes the queued lines, which flushes whenever the queue is empty. After each flush
/// the thread pauses, and lines are queued without waking it. So a line that comes alone is written at once, and many lines are
/// written together, two hundred times a second at most.
#[derive(Debug)]
pub(super) struct Batched<W: Write>(KeptLines<W>);

impl<W: Write> Batched<W> {
    pub(super) fn new(writer: W, waiting: Arc<AtomicUsize>) -> Self {
        Self(KeptLines::new(writer, waiting))
    }
}

impl<W: Write> Write for Batched<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.0.flush();
        thread::sleep(PAUSE);
        flushed
    }
}

/// A buffered writer. Lines that a flush can't write stay in the buffer while they fit, and are written with the next line.
#[derive(Debug)]
pub(super) struct KeptLines<W: Write> {
    writer: BufWriter<W>,
    /// The number of lines that the last flush could not write: those in the buffer, and one whose end the writer keeps.
    waiting: Arc<AtomicUsize>,
}

impl<W: Write> KeptLines<W> {
    pub(super) fn new(writer: W, waiting: Arc<AtomicUsize>) -> Self {
        Self {
            writer: BufWriter::with_capacity(MAX_BATCH, writer),
            waiting,
        }
    }
}

impl<W: Write> Write for KeptLines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.writer.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.writer.flush();
        let unwritten = self.writer.buffer().iter();
        let waiting = unwritten.filter(|&&byte| byte == b'\n').count();
        let is_line_cut = flushed.is_err() && self.writer.get_mut().flush().is_err();
        self.waiting
            .store(waiting + usize::from(is_line_cut), Relaxed);
        flushed
    }
}

/// Bytes written by one call.
const MAX_BATCH: usize = 64 * 1024;
const PAUSE: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that is full until it has this many bytes of space.
    struct Disk(Arc<AtomicUsize>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let space = self.0.load(Relaxed);
            if space == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let length = bytes.len().min(space);
            self.0.store(space - length, Relaxed);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_can_not_be_written_are_counted_until_they_are_written() {
        let (space, waiting) = (Arc::default(), Arc::default());
        let mut log = KeptLines::new(Disk(Arc::clone(&space)), Arc::clone(&waiting));
        let mut write_line = || {
            log.write_all(b"line\n").unwrap();
            let _ = log.flush();
            waiting.load(Relaxed)
        };
        assert_eq!([write_line(), write_line()], [1, 2]);
        // A part of the first line is written.
        space.store(3, Relaxed);
        assert_eq!(write_line(), 3);
        space.store(100, Relaxed);
        assert_eq!(write_line(), 0);
    }
}
