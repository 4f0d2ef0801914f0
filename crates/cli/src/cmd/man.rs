//! `peername man`: writes the manual pages.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;

/// Options of `peername man`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// An existing folder; gets peername.1, and a page for each subcommand
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    clap_mangen::generate_to(crate::Args::command(), &args.folder)
        .with_context(|| format!("writing manual pages to {}", args.folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
