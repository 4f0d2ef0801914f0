//! `peername man`: writes the manual pages.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Command;

use crate::help;

/// Options of `peername man`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Example:\n  peername man /usr/local/share/man/man1")]
pub(crate) struct Args {
    /// A folder, which is made if it does not exist; gets peername.1, and a page for each subcommand
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(
        !args.folder.is_file(),
        "{}: a file, not a folder",
        args.folder.display()
    );
    fs::create_dir_all(&args.folder)
        .and_then(|()| clap_mangen::generate_to(for_manual(help::command_line()), &args.folder))
        .with_context(|| format!("writing manual pages to {}", args.folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Adds what clap_mangen leaves out: the example before the help, and the options that `-h` hides.
fn for_manual(command: Command) -> Command {
    let description = command
        .get_about()
        .zip(command.get_before_help())
        .map(|(about, example)| format!("{about}\n\n{example}"));
    let command = match description {
        Some(description) => command.long_about(description),
        None => command,
    };
    command
        .mut_args(|arg| {
            let is_hidden = arg.is_hide_set() || arg.is_hide_long_help_set();
            arg.hide(is_hidden).hide_short_help(is_hidden)
        })
        .mut_subcommands(for_manual)
}
