//! `peername decode`.

use std::process::ExitCode;

/// Options of `peername decode`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not yet written")
}
