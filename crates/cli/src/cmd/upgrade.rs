//! `peername upgrade`: has a running process replaced by the binary that is at its path now.

use std::process::ExitCode;

use peername_daemon::upgrade::request::request;

/// Options of `peername upgrade`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The process: a `proxy`, `forward` or `intercept`
    #[arg(long, value_name = "PID")]
    pid: u32,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    println!("{}", request(args.pid)?);
    Ok(ExitCode::SUCCESS)
}
