//! `peername upgrade`: replaces a running process by the binary that is at its path now.

use std::io::{Write, stdout};
use std::process::ExitCode;

use anyhow::anyhow;
use peername_daemon::upgrade::request::request;
use peername_doctor::confinement::LIST_PROCESSES;
use peername_sys::SyscallError;

/// Options of `peername upgrade`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Example:\n  peername upgrade --pid 1234")]
pub(crate) struct Args {
    /// The process: a `proxy`, `forward` or `intercept`; `pgrep -a peername` lists them
    #[arg(long, value_name = "PID", value_parser = process_id)]
    pid: u32,
}

fn process_id(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("use the number of a process; {LIST_PROCESSES}"))
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let replaced = request(args.pid).map_err(|error| {
        if is_missing(&error) {
            anyhow!("process {} does not run; {LIST_PROCESSES}", args.pid)
        } else {
            error
        }
    })?;
    writeln!(stdout(), "{replaced}")?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the process does not exist.
fn is_missing(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<SyscallError>()
        .is_some_and(|error| error.source.raw_os_error() == Some(ESRCH))
}

const ESRCH: i32 = 3;
