//! The subcommands, one file each: its options and what it does with them.

pub(crate) mod decode;
pub(crate) mod doctor;
pub(crate) mod routes;

use std::process::ExitCode;

/// What the user asked for.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Read a PROXY protocol header and print what it says.
    Decode(decode::Args),
    /// Show, add or remove the routing rules that bring a backend's replies back.
    Routes(routes::Args),
    /// Check this host, and say how to mend what is wrong.
    Doctor(doctor::Args),
}

impl Command {
    /// Runs it to its end. An error is a start-up or run-time failure (exit 1); wrong usage never gets here.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Decode(args) => decode::run(&args),
            Self::Routes(args) => routes::run(&args),
            Self::Doctor(args) => doctor::run(&args),
        }
    }
}
