//! What a translation of another program's command line results in: what is run instead, or an early exit.

use std::ffi::OsString;
use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use super::program::Program;

/// The native command line that runs in the place of another program's.
#[derive(Debug)]
pub(crate) struct Translation {
    pub(super) program: Program,
    /// The native words, without the program's name.
    pub(super) words: Vec<OsString>,
    /// Warnings for the user, a line each.
    pub(super) notes: Vec<String>,
    /// What cloudflare/mmproxy checks and prints before it starts.
    pub(super) preflight: Option<Preflight>,
}

/// The mark, table and targets that cloudflare/mmproxy prints routing commands for, and tries.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Preflight {
    pub(super) mark: u32,
    pub(super) table: u32,
    /// IPv4 and IPv6; `None` for a name without an address.
    pub(super) targets: [Option<std::net::SocketAddr>; 2],
    /// Without the routing commands.
    pub(super) quiet: bool,
}

/// The command line asks for no run: it is wrong, or asks for help.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EarlyExit {
    /// What to print.
    pub(super) text: String,
    /// Help that was asked for and is no error.
    pub(super) on_stdout: bool,
    /// The other program's own exit code, but never 0 for a failure.
    pub(super) code: u8,
}

/// What a translation depends on beside the command line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Environment<'a> {
    /// The variable `RUST_LOG`.
    pub(super) rust_log: Option<&'a str>,
    /// Processors of this machine.
    pub(super) cores: usize,
}

impl EarlyExit {
    pub(super) fn failure(code: u8, text: String) -> Self {
        Self {
            text,
            on_stdout: false,
            code,
        }
    }

    /// Prints the text and returns the code.
    pub(crate) fn print(&self) -> ExitCode {
        // A reader that closed the pipe has read enough.
        let _ = match self.on_stdout {
            true => writeln!(stdout(), "{}", self.text),
            false => writeln!(stderr(), "{}", self.text),
        };
        ExitCode::from(self.code)
    }
}

/// Writes to standard error. That it can't be written, such as to a log on a full disk, is no reason not to serve.
pub(super) fn print_to_stderr(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}

/// A peer that may send a header may claim any client: not to be overlooked.
pub(super) const TRUST_ANY_WARNING: &str =
    "WARNING: everybody who reaches this port may claim any client address";
