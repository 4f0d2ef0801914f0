//! Called by the name of a program that came before, it takes that program's command line.
//!
//! A translation and nothing more: the old words are taken apart by the old program's rules, and come
//! out as a native command line, which then goes the ordinary way. So whatever is said here can be
//! said natively, and the start-up warning says how. What is not kept: a failure to start is never
//! exit 0, and who may be claimed, listened to and connected to is still decided by the native rules.

mod allow_list;
mod argwerk;
mod cloudflare;
mod getopt_long;
mod getopts;
mod given;
mod go_flag;
mod go_mmproxy;
mod letters;
mod mmproxy_rs;
mod native;
mod program;
mod udppp;

use std::ffi::{OsStr, OsString};
use std::io::{Write, stderr, stdout};
use std::iter;
use std::process::ExitCode;
use std::thread::available_parallelism;

use clap::Parser;

use crate::{Args, lifecycle};
use cloudflare::Suggestions;
use program::Program;

/// What is to be run in the place of another program.
#[derive(Debug)]
pub(crate) struct Translation {
    program: Program,
    /// The native words, without the program's name.
    words: Vec<OsString>,
    /// What the user should know, a line each.
    notes: Vec<String>,
    /// What cloudflare/mmproxy prints before it starts.
    suggestions: Option<Suggestions>,
}

/// The command line asks for no run: it is wrong, or asks for help.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// What to print.
    text: String,
    /// Help that was asked for and is no error.
    on_stdout: bool,
    /// The other program's own code, but never 0 for a failure.
    code: u8,
}

/// What a translation depends on beside the words.
#[derive(Clone, Copy, Debug)]
struct World<'a> {
    /// The variable `RUST_LOG`.
    rust_log: Option<&'a str>,
    /// Processors of this machine.
    cores: usize,
}

/// `None` when this is peername itself: called by no other program's name, and without `--compat`
/// first.
pub(crate) fn translate(argv: &[OsString]) -> Option<Result<Translation, Stop>> {
    let (name, args) = argv.split_first()?;
    let rust_log = std::env::var("RUST_LOG").ok();
    let world = World {
        rust_log: rust_log.as_deref(),
        cores: available_parallelism().map_or(1, usize::from),
    };
    match asked_for(args) {
        Some(Ok((program, args))) => Some(program.translate(args, world)),
        Some(Err(stop)) => Some(Err(stop)),
        None => Some(Program::called(name, args)?.translate(args, world)),
    }
}

/// `--compat NAME` or `--compat=NAME` as the first words, and what follows.
fn asked_for(args: &[OsString]) -> Option<Result<(Program, &[OsString]), Stop>> {
    let (first, rest) = args.split_first()?;
    let first = first.to_str()?;
    let (name, args) = match first.strip_prefix("--compat=") {
        Some(name) => (OsStr::new(name), rest),
        None if first == "--compat" => match rest.split_first() {
            Some((name, rest)) => (name.as_os_str(), rest),
            None => (OsStr::new(""), rest),
        },
        None => return None,
    };
    Some(match Program::named(name) {
        Some(program) => Ok((program, args)),
        None => Err(Stop::failure(
            2,
            format!("--compat takes one of {}", program::NAMES.join(", ")),
        )),
    })
}

impl Translation {
    /// Says what runs, and runs it. No failure is exit 0 or 2: none of the programs had the latter for
    /// what is found wrong here.
    pub(crate) fn run(&self) -> ExitCode {
        let words = iter::once(OsString::from("peername")).chain(self.words.iter().cloned());
        let args = match Args::try_parse_from(words) {
            Ok(args) => args,
            Err(error) => {
                say(&error.to_string());
                return ExitCode::FAILURE;
            }
        };
        self.announce();
        crate::code_of(self.serve(args), 1)
    }

    fn serve(&self, args: Args) -> anyhow::Result<ExitCode> {
        if let Some(suggestions) = &self.suggestions {
            lifecycle::block_on(async {
                suggestions.print().await;
                Ok(())
            })?;
        }
        args.command.run()
    }

    /// One line each on standard error, so that a log on standard output stays what it is: what runs
    /// in place of the old words, and what the user should know.
    fn announce(&self) {
        let program = self.program.name();
        let native = native::quoted(&self.words);
        say(&format!(
            "peername: as {program}, this is what runs; use it instead: peername {native}\n"
        ));
        for note in &self.notes {
            say(&format!("peername: {note}\n"));
        }
    }
}

/// Writes to standard error. That nobody can read it, such as a log on a full disk, is no reason not to
/// serve.
fn say(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}

impl Stop {
    fn failure(code: u8, text: String) -> Self {
        Self {
            text,
            on_stdout: false,
            code,
        }
    }

    /// Prints it.
    pub(crate) fn print(&self) -> ExitCode {
        // Whoever closed the pipe has seen enough.
        let _ = match self.on_stdout {
            true => writeln!(stdout(), "{}", self.text),
            false => writeln!(stderr(), "{}", self.text),
        };
        ExitCode::from(self.code)
    }
}

/// Whoever may send a header may claim to be anybody: not to be overlooked.
const EVERYBODY: &str = "WARNING: everybody who reaches this port may claim any client address";

#[cfg(test)]
mod tests;
