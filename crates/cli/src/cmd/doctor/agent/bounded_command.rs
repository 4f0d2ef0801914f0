//! Programs of others, which may hang, or print without end.

use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use peername_sys::event::wait_readable;
use peername_sys::process::pidfd::PidFd;

/// Runs a command until it exits, and returns the beginning of its output, [`MAX_OUTPUT`] of each stream; kills it after this time.
/// Processes that it has left behind may keep its pipes.
///
/// # Errors
///
/// It can't be started; [`ErrorKind::TimedOut`] if it has not exited in time.
pub(super) fn output_within(command: &mut Command, limit: Duration) -> io::Result<Output> {
    let deadline = Instant::now() + limit;
    let mut child = spawn(command)?;
    let mut stdout = Captured::new(child.stdout.take());
    let mut stderr = Captured::new(child.stderr.take());
    let captured = capture(&child, &mut stdout, &mut stderr, deadline);
    // One that has exited is reaped.
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

/// Reads the output of a child until that is enough, ends, or has [`MAX_OUTPUT`] bytes.
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
        // Asked before the last read, which then gets everything.
        let has_exited = process.has_exited();
        stdout.read_available()?;
        stderr.read_available()?;
        if has_exited {
            return Ok(());
        }
        let pipes = [
            stdout.pipe.as_ref().map(AsFd::as_fd),
            stderr.pipe.as_ref().map(AsFd::as_fd),
        ];
        let pipes = pipes.into_iter().flatten();
        wait_until(deadline, pipes.chain([process.as_fd()]))?;
    }
}

/// Waits until one of these is readable; returns earlier after a signal.
fn wait_until<'a>(
    deadline: Instant,
    fds: impl IntoIterator<Item = BorrowedFd<'a>>,
) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    wait_readable(fds, Some(left))
        .map(drop)
        .map_err(|error| error.source)
}

/// A pipe from a command, and the beginning of what has come through it.
struct Captured<P> {
    /// `None` after its end.
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

    /// Reads all that the pipe has now, and discards what is beyond [`MAX_OUTPUT`].
    fn read_available(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(());
        };
        let is_readable = wait_readable([pipe.as_fd()], Some(Duration::ZERO));
        if !is_readable.map_err(|error| error.source)? {
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

/// As much as a pipe takes (pipe(7)), so that one read gets all of it.
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
    fn process_that_is_left_behind_is_not_waited_for() {
        let output = run("sleep 6 & echo started", Duration::from_secs(5)).unwrap();
        assert_eq!(output.stdout, b"started\n");
        assert!(output.status.success());
    }

    #[test]
    fn endless_output_is_cut() {
        let script = "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; exit 3";
        let output = run(script, Duration::from_secs(30)).unwrap();
        assert_eq!(
            [output.stdout.len(), output.stderr.len()],
            [MAX_OUTPUT, MAX_OUTPUT]
        );
        assert_eq!(output.status.code(), Some(3));
    }
}
