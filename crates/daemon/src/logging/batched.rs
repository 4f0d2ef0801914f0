//! Batches log lines, for fewer system calls and wake-ups.

use std::io::{self, BufWriter, Write};
use std::thread;
use std::time::Duration;

/// A buffered writer for the thread that writes the queued lines, which flushes whenever the queue is empty. After each flush
/// the thread pauses, and lines are queued without waking it. So a line that comes alone is written at once, and many lines are
/// written together, two hundred times a second at most.
#[derive(Debug)]
pub(super) struct Batched<W: Write>(BufWriter<W>);

impl<W: Write> Batched<W> {
    pub(super) fn new(writer: W) -> Self {
        Self(BufWriter::with_capacity(MAX_BATCH, writer))
    }
}

impl<W: Write> Write for Batched<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()?;
        thread::sleep(PAUSE);
        Ok(())
    }
}

/// Bytes written by one call.
const MAX_BATCH: usize = 64 * 1024;
const PAUSE: Duration = Duration::from_millis(5);
