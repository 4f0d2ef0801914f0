//! `peername completions`: prints a shell's completion script for the command line.

use std::io::{Write, stdout};
use std::process::ExitCode;

use clap_complete::{Shell, generate};

/// Options of `peername completions`.
#[derive(Debug, clap::Args)]
#[command(
    before_help = "Example:\n  peername completions bash > /usr/share/bash-completion/completions/peername"
)]
pub(crate) struct Args {
    /// bash, zsh, fish, elvish or powershell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Rendered into memory first: clap panics when it can't write.
    let mut script = Vec::new();
    generate(
        args.shell,
        &mut crate::help::command_line(),
        "peername",
        &mut script,
    );
    stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
