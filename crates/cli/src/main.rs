//! `peername`: shows a server behind a load balancer its clients' true addresses, and limits a program to the hosts that are
//! allowed.
#![forbid(unsafe_code)]

mod admin_client;
mod check_report;
mod cmd;
mod compat;
mod config_file;
mod exit_code;
mod help;
mod jail_note;
mod launcher;
mod options;
mod publish;
mod separator;
mod telemetry;

use std::env;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use peername_daemon::signals::Signals;
use peername_daemon::usage::UsageError;
use peername_daemon::usage::error_text::with_causes;
use peername_daemon::{handover, logging, value};
use peername_sys::process::caps::{self, CapabilitySet};
use peername_sys::process::limits;
use peername_sys::process::stderr::write_line;

use crate::cmd::Command;
use crate::exit_code::{FAILURE, WRONG_USAGE};

/// Gives a server behind a load balancer its true clients, and a program that you start only the hosts that you allow.
#[derive(Debug, Parser)]
#[command(
    name = "peername",
    version,
    max_term_width = 100,
    before_help = EXAMPLES,
    after_help = AFTER_HELP
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

/// The exit codes are those of [`exit_code`](mod@exit_code); with `--compat`, wrong usage has the other program's.
fn main() -> ExitCode {
    limits::outlive_file_size_limit();
    // In the container image the file's capabilities have no effective bit, because with it execve(2) would fail wherever a
    // capability can't be granted, even for commands that need none. An error here is ignored: the first call that needs a
    // capability reports it.
    let _ = caps::set_effective(CapabilitySet::from_bits_retain(u64::MAX));
    let argv: Vec<_> = env::args_os().collect();
    match compat::translate(&argv) {
        None => run(&argv),
        Some(Err(exit)) => exit.print(),
        Some(Ok(translation)) => translation.run(),
    }
}

/// Runs a command line of peername's own.
fn run(argv: &[OsString]) -> ExitCode {
    if cmd::is_long_running(argv) {
        // Options may have names, which are resolved as they are parsed.
        Signals::defer();
    }
    match help::parse(argv) {
        Ok(args) => {
            warn_of_older_names(argv);
            exit_code(args.command.run(), WRONG_USAGE)
        }
        Err(error) => {
            if let Some(explanation) = cmd::explain(argv, &error) {
                write_line(format_args!("peername: {explanation}"));
                return ExitCode::from(unless_name_unresolved(WRONG_USAGE));
            }
            let code = u8::try_from(error.exit_code()).unwrap_or(WRONG_USAGE);
            // A closed pipe is not a failure.
            let _ = error.print();
            ExitCode::from(unless_name_unresolved(code))
        }
    }
}

/// Warns of options that were given by an older name.
fn warn_of_older_names(argv: &[OsString]) {
    let command = Args::command();
    let Some(subcommand) = argv.get(1).and_then(|name| command.find_subcommand(name)) else {
        return;
    };
    for arg in subcommand.get_arguments() {
        for alias in arg.get_all_aliases().unwrap_or_default() {
            if is_given(argv, alias) {
                let name = arg.get_long().unwrap_or_default();
                write_line(format_args!(
                    "peername: --{alias} is an older name of --{name}; both work"
                ));
            }
        }
    }
}

/// Whether the option is given, with or without a value.
fn is_given(argv: &[OsString], option: &str) -> bool {
    argv.iter()
        .take_while(|word| *word != "--")
        .filter_map(|word| word.to_str()?.strip_prefix("--"))
        .any(|word| word.split('=').next() == Some(option))
}

/// The exit code of a command. Prints its error, and reports it to the process that this one is to replace, if there is one.
fn exit_code(outcome: anyhow::Result<ExitCode>, wrong_usage: u8) -> ExitCode {
    match outcome {
        Ok(code) => code,
        // The reader has closed the pipe, as `| head` does.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // The priority by which the journal shows the line as an error.
            let priority = if logging::journal::is_stderr_journal() {
                "<3>"
            } else {
                ""
            };
            write_line(format_args!("{priority}peername: {}", with_causes(&error)));
            handover::report_failure(&error);
            ExitCode::from(if error.is::<UsageError>() {
                unless_name_unresolved(wrong_usage)
            } else {
                FAILURE
            })
        }
    }
}

/// Replaces the exit code of wrong usage, which tells a service manager not to retry, by [`FAILURE`] if a name did not resolve:
/// it may resolve later.
fn unless_name_unresolved(code: u8) -> u8 {
    match code {
        WRONG_USAGE if value::has_failed_lookup() => FAILURE,
        code => code,
    }
}

const EXAMPLES: &str = "\
Examples: see what it does; check this host; serve a web server on port 8080 behind a balancer
  peername demo
  peername doctor --target 127.0.0.1:8080
  peername proxy --target 127.0.0.1:8080 --trust 192.0.2.0/24 --setup-routes";
const AFTER_HELP: &str = "`peername --compat go-mmproxy|mmproxy-rs|cloudflare-mmproxy|udppp …` \
    takes the options of that program; so does a link to this binary by its name.\n\
    Pages that messages name, as docs/config.md, are in /usr/share/doc/peername, or in share/doc/peername of the prefix of an \
    installation. `man peername` is the manual; `peername man DIR` writes its pages to any directory.";

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    /// clap checks the definition of a command only when it is used, and only in debug builds.
    #[test]
    fn the_command_line_is_well_defined() {
        crate::help::command_line().debug_assert();
    }
}
