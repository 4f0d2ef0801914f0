//! The lines that a supervisor or the agent writes to standard error.

use std::sync::OnceLock;

use peername_sys::process::stderr;

/// Puts a subject, such as `container web`, into each line that this process writes from now on: `peername: container web: …`.
pub(crate) fn set_subject(subject: String) {
    let _ = SUBJECT.set(subject);
}

/// Writes a line that begins with `peername: `, or drops it if standard error is not writable now.
pub fn try_write_line(line: &str) {
    let _ = write_line_if_writable(line);
}

/// As [`try_write_line`], and returns whether the line was written.
pub(crate) fn write_line_if_writable(line: &str) -> bool {
    match (SUBJECT.get(), line.strip_prefix(NAME)) {
        (Some(subject), Some(rest)) => {
            stderr::write_line_if_writable(&format!("{NAME}{subject}: {rest}"))
        }
        _ => stderr::write_line_if_writable(line),
    }
}

static SUBJECT: OnceLock<String> = OnceLock::new();
const NAME: &str = "peername: ";
