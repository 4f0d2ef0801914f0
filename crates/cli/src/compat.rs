//! Translates the command lines of four predecessors into native ones.
//!
//! The old options are parsed by the old program's rules and result in a native command line, which is printed at the start and
//! then runs as any other. So everything that is possible here is possible natively. Two things differ from the old programs: a
//! failure to start is never exit 0, and the native rules decide which clients may be claimed and which addresses are listened
//! on and connected to.

mod cloudflare;
mod go_mmproxy;
mod mmproxy_rs;
mod native_command;
mod parser;
mod program;
mod translation;
mod trust_file;
mod udppp;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{Write, stderr};
use std::iter;
use std::path::Path;
use std::process::ExitCode;
use std::thread::available_parallelism;

use clap::Parser;
use peername_daemon::usage::error_text::with_causes;
use peername_observe::shell::command_line;

use crate::Args;
use crate::exit_code::FAILURE;
use program::Program;
use translation::{EarlyExit, Environment, Translation};

/// Translates a command line of another program: this binary was called by that program's name, or with `--compat NAME` first.
/// `None` for a command line of peername's own.
pub(crate) fn translate(argv: &[OsString]) -> Option<Result<Translation, EarlyExit>> {
    let (name, args) = argv.split_first()?;
    let rust_log = std::env::var("RUST_LOG").ok();
    let environment = Environment {
        rust_log: rust_log.as_deref(),
        cores: available_parallelism().map_or(1, usize::from),
    };
    match compat_option(args) {
        Some(Ok((program, args))) => Some(translate_for(program, args, environment)),
        Some(Err(exit)) => Some(Err(exit)),
        None if is_ambiguous(name, args) => Some(cloudflare::translate(args, true)),
        None => Some(translate_for(called_as(name, args)?, args, environment)),
    }
}

fn translate_for(
    program: Program,
    args: &[OsString],
    environment: Environment<'_>,
) -> Result<Translation, EarlyExit> {
    match program {
        Program::GoMmproxy => go_mmproxy::translate(args),
        Program::MmproxyRs => mmproxy_rs::translate(args, environment),
        Program::Cloudflare => cloudflare::translate(args, false),
        Program::Udppp => udppp::translate(args, environment),
    }
}

/// Parses `--compat NAME` or `--compat=NAME` as the first words; returns the program and the words that follow.
fn compat_option(args: &[OsString]) -> Option<Result<(Program, &[OsString]), EarlyExit>> {
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
    Some(match Program::from_name(name) {
        Some(program) => Ok((program, args)),
        None => Err(EarlyExit::failure(
            2,
            format!("--compat takes one of {}", Program::names().join(", ")),
        )),
    })
}

/// The program by whose name this binary, or a link to it, was called.
fn called_as(name: &OsStr, args: &[OsString]) -> Option<Program> {
    match Path::new(name).file_name()? {
        name if name == "mmproxy" => Some(disambiguate_mmproxy(args)),
        name => Program::from_name(name),
    }
}

/// Returns which of the two programs called `mmproxy` understands the command line. If both do, returns cloudflare's if the
/// command line has all four options that cloudflare's requires ([`is_ambiguous`]). If this choice is wrong, an unneeded
/// firewall mark is set, which does less harm than a missing one.
fn disambiguate_mmproxy(args: &[OsString]) -> Program {
    match (mmproxy_rs::understands(args), cloudflare::understands(args)) {
        (false, true) => Program::Cloudflare,
        (true, true) if cloudflare::is_complete(args) => Program::Cloudflare,
        _ => Program::MmproxyRs,
    }
}

/// Whether the command line could be for either program that is called `mmproxy`.
fn is_ambiguous(name: &OsStr, args: &[OsString]) -> bool {
    Path::new(name).file_name() == Some(OsStr::new("mmproxy"))
        && mmproxy_rs::understands(args)
        && called_as(name, args) == Some(Program::Cloudflare)
}

impl Translation {
    /// Prints the native command line and runs it. A failure exits with neither 0 nor 2, because none of the programs exited
    /// with 2 for the errors that are detected here.
    pub(crate) fn run(&self) -> ExitCode {
        let words = iter::once(OsString::from("peername")).chain(self.words.iter().cloned());
        let args = match Args::try_parse_from(words) {
            Ok(args) => args,
            Err(error) => {
                let error = error.to_string();
                print_to_stderr(&format!("{error}{}", self.explain_options(&error)));
                return ExitCode::FAILURE;
            }
        };
        self.announce();
        let outcome = args.command.run();
        let error = outcome.as_ref().err().map(with_causes).unwrap_or_default();
        let code = crate::exit_code(outcome, FAILURE);
        print_to_stderr(&self.explain_options(&error));
        code
    }

    /// Returns a line for each native option in the text of an error, with the old option that it stands for. The user has
    /// given no native one. Commands between backticks are native as a whole.
    fn explain_options(&self, error: &str) -> String {
        let command = self.words.first().map(|word| word.to_string_lossy());
        let options: BTreeSet<_> = error
            .split('`')
            .step_by(2)
            .flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-'))
            .filter(|word| word.len() > 2 && word.starts_with("--") && *word != "--help")
            .collect();
        options
            .into_iter()
            .map(|option| match self.program.own_option(option) {
                Some(own) => format!(
                    "peername: {option} stands for {}'s {own}\n",
                    self.program.name()
                ),
                None => format!(
                    "peername: {option} is an option of peername {}\n",
                    command.as_deref().unwrap_or_default()
                ),
            })
            .collect()
    }

    /// Prints the native command line and the warnings, a line each, on standard error, so that a log on standard output
    /// stays parseable.
    fn announce(&self) {
        let program = self.program.name();
        let native = command_line(&self.words);
        print_to_stderr(&format!(
            "peername: as {program}, translated; use this instead: peername {native}\n"
        ));
        for note in &self.notes {
            print_to_stderr(&format!("peername: {note}\n"));
        }
    }
}

/// Writes to standard error. A failed write, such as to a log on a full disk, does not keep the proxy from serving.
fn print_to_stderr(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests;
