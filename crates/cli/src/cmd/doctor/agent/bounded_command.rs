//! Programs of others, which may hang.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use peername_sys::event::wait_readable;

/// Runs a command to its end, and returns its output; kills it after this time. It has to print less than a pipe takes.
///
/// # Errors
///
/// It can't be started, or has not ended in time.
pub(super) fn output_within(command: &mut Command, limit: Duration) -> io::Result<Output> {
    let mut child = spawn(command)?;
    // Its end closes the pipe.
    let stdout = read_until(&mut child.stdout, Instant::now() + limit, |_| false);
    if stdout.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    Ok(Output {
        stdout: stdout?,
        ..child.wait_with_output()?
    })
}

/// Starts a command without input, with pipes for its output.
///
/// # Errors
///
/// As [`Command::spawn`].
pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Reads the output of a child until that is enough, or ends.
///
/// # Errors
///
/// [`ErrorKind::TimedOut`] at the deadline.
pub(super) fn read_until(
    output: &mut Option<impl Read + AsFd>,
    deadline: Instant,
    is_enough: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    let Some(output) = output else {
        return Ok(read);
    };
    while !is_enough(&read) {
        let left = deadline.saturating_duration_since(Instant::now());
        let is_readable =
            wait_readable([output.as_fd()], Some(left)).map_err(|error| error.source)?;
        if !is_readable {
            return Err(ErrorKind::TimedOut.into());
        }
        let mut bytes = [0; 1024];
        match output.read(&mut bytes)? {
            0 => break,
            len => read.extend_from_slice(bytes.get(..len).unwrap_or_default()),
        }
    }
    Ok(read)
}
