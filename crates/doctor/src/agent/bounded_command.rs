//! Runs programs that may hang or print without end: the time and the output are limited.

use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use peername_sys::event::wait_readable;
use peername_sys::process::pidfd::PidFd;

/// Runs a command until it exits, and returns the beginning of its output, [`MAX_OUTPUT`] bytes of each stream; kills it after
/// `limit`. Does not wait for processes that have inherited its pipes.
///
/// # Errors
///
/// The command can't be started; [`ErrorKind::TimedOut`] if it has not exited in time.
pub(super) fn output_within(command: &mut Command, limit: Duration) -> io::Result<Output> {
    let deadline = Instant::now() + limit;
    let mut child = spawn(command)?;
    let mut stdout = Captured::new(child.stdout.take());
    let mut stderr = Captured::new(child.stderr.take());
    let captured = capture(&child, &mut stdout, &mut stderr, deadline);
    // Does nothing to a child that has exited, as it is not reaped yet.
    let _ = child.kill();
    let status = child.wait()?;
    captured.map(|()| Output {
        status,
        stdout: stdout.bytes,
        stderr: stderr.bytes,
    })
}

/// Starts a command without input, with pipes for its output.
pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Reads the output of a child until `is_enough` returns true, or to its end, or up to [`MAX_OUTPUT`] bytes.
///
/// # Errors
///
/// [`ErrorKind::TimedOut`] at the deadline.
pub(super) fn read_until(
    output: &mut Option<impl Read + AsFd>,
    deadline: Instant,
    is_enough: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let mut captured = Captured::new(output.as_mut());
    while let Some(pipe) = &captured.pipe
        && !is_enough(&captured.bytes)
        && captured.bytes.len() < MAX_OUTPUT
    {
        wait_until(deadline, [pipe.as_fd()])?;
        captured.read_available()?;
    }
    Ok(captured.bytes)
}

/// Reads both streams until the child has exited.
fn capture(
    child: &Child,
    stdout: &mut Captured<impl Read + AsFd>,
    stderr: &mut Captured<impl Read + AsFd>,
    deadline: Instant,
) -> io::Result<()> {
    let process = PidFd::open(child.id()).map_err(|error| error.source)?;
    loop {
        // Checked before the reads, because reads after the exit get everything that the child has written.
        let has_exited = process.has_exited();
        stdout.read_available()?;
        stderr.read_available()?;
        if has_exited {
            return Ok(());
        }
        let fds = [
            stdout.pipe.as_ref().map(AsFd::as_fd),
            stderr.pipe.as_ref().map(AsFd::as_fd),
            Some(process.as_fd()),
        ];
        wait_until(deadline, fds.into_iter().flatten())?;
    }
}

/// Waits until a descriptor is readable; returns earlier after a signal.
fn wait_until<'a>(
    deadline: Instant,
    fds: impl IntoIterator<Item = BorrowedFd<'a>>,
) -> io::Result<()> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    wait_readable(fds, Some(remaining))
        .map(drop)
        .map_err(|error| error.source)
}

/// A pipe from a command, and the beginning of what has come through it.
struct Captured<P> {
    /// `None` after the end of the stream.
    pipe: Option<P>,
    bytes: Vec<u8>,
}

impl<P: Read + AsFd> Captured<P> {
    fn new(pipe: Option<P>) -> Self {
        Self {
            pipe,
            bytes: Vec::new(),
        }
    }

    /// Reads all that the pipe has now, without waiting, and discards what is beyond [`MAX_OUTPUT`].
    fn read_available(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(());
        };
        let is_readable =
            wait_readable([pipe.as_fd()], Some(Duration::ZERO)).map_err(|error| error.source)?;
        if !is_readable {
            return Ok(());
        }
        let mut bytes = vec![0; MAX_OUTPUT];
        let len = pipe.read(&mut bytes)?;
        if len == 0 {
            self.pipe = None;
        }
        bytes.truncate(len.min(MAX_OUTPUT - self.bytes.len()));
        self.bytes.append(&mut bytes);
        Ok(())
    }
}

/// The capacity of a pipe (pipe(7)), so that one read gets all that a pipe has.
const MAX_OUTPUT: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, limit: Duration) -> io::Result<Output> {
        output_within(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn command_that_closes_its_output_and_hangs_is_killed() {
        let started = Instant::now();
        let error = run("exec >&- 2>&-; exec sleep 60", Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn process_that_inherits_the_pipes_is_not_waited_for() {
        let output = run("sleep 6 & echo started", Duration::from_secs(5)).unwrap();
        assert_eq!(output.stdout, b"started\n");
        assert!(output.status.success());
    }

    #[test]
    fn long_output_is_truncated() {
        let script = "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; exit 3";
        let output = run(script, Duration::from_secs(30)).unwrap();
        assert_eq!(
            [output.stdout.len(), output.stderr.len()],
            [MAX_OUTPUT, MAX_OUTPUT]
        );
        assert_eq!(output.status.code(), Some(3));
    }
}
