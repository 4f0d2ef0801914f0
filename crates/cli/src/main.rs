//! `peername`: gives a server behind a load balancer its true client back.
#![forbid(unsafe_code)]

mod cmd;
mod lifecycle;
mod logging;
mod manager;
mod usage;
mod value;

use std::io;
use std::process::ExitCode;

use clap::Parser;

use crate::cmd::Command;
use crate::usage::Usage;

/// Gives a server behind a load balancer its true client back.
#[derive(Debug, Parser)]
#[command(name = "peername", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

/// 0 success, 1 a start-up or run-time failure, 2 wrong usage; subcommands add their own.
fn main() -> ExitCode {
    match Args::parse().command.run() {
        Ok(code) => code,
        // Whoever read our output has seen enough: `| head`.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peername: {error:#}");
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// clap checks the definition of a command only when it is used, and only in debug builds.
    #[test]
    fn the_command_line_is_well_defined() {
        crate::Args::command().debug_assert();
    }
}
