//! The result of translating another program's command line: a native command line, or an early exit.

use std::ffi::OsString;
use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use super::program::Program;

/// The native command line that replaces another program's.
#[derive(Debug)]
pub(crate) struct Translation {
    pub(super) program: Program,
    /// The native words, without the program's name.
    pub(super) words: Vec<OsString>,
    /// Warnings for the user, a line each.
    pub(super) notes: Vec<String>,
}

/// The end of a command line that runs nothing: it is wrong, or asks for help.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EarlyExit {
    /// The text to print.
    pub(super) text: String,
    /// Whether the text is help that was requested, for standard output; else it is an error.
    pub(super) is_requested_help: bool,
    /// The other program's own exit code, but never 0 for a failure.
    pub(super) code: u8,
}

/// The environment that a translation depends on beside the command line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Environment<'a> {
    /// The variable `RUST_LOG`.
    pub(super) rust_log: Option<&'a str>,
    /// The number of processors.
    pub(super) cores: usize,
}

impl EarlyExit {
    pub(super) fn failure(code: u8, text: String) -> Self {
        Self {
            text,
            is_requested_help: false,
            code,
        }
    }

    /// Prints the text and returns the code.
    pub(crate) fn print(&self) -> ExitCode {
        // Fails if the reader has closed the pipe, which is not an error.
        let _ = if self.is_requested_help {
            writeln!(stdout(), "{}", self.text)
        } else {
            writeln!(stderr(), "{}", self.text)
        };
        ExitCode::from(self.code)
    }
}

/// The warning if every peer is trusted: a peer that may send a header may claim any client.
pub(super) const TRUST_ANY_WARNING: &str =
    "WARNING: every peer that reaches this port may claim any client address";
