//! `peername exec --connect`: the client's side.

use std::net::SocketAddr;
use std::process::{Command, ExitCode};

use peername_exec::connect::{Connect, ConnectError};
use peername_exec::program::{Reason, examine, search_path};
use peername_sys::process::stderr::write_line;

use super::options::Args;
use crate::launcher::{self, execute};

/// Becomes the client; returns only if that fails.
pub(super) fn run(args: &Args, source: SocketAddr) -> ExitCode {
    let mut command = launcher::command(&args.command);
    match prepare(args, source, &mut command) {
        Ok(reason) => warn_if_unreachable(&reason),
        Err(error) => {
            write_line(format_args!("peername: {error}"));
            return ExitCode::from(error.exit_code());
        }
    }
    // The library does not see connections that are opened through io_uring.
    if let Err(error) = peername_sys::seccomp::deny_io_uring() {
        write_line(format_args!(
            "peername: io_uring can't be refused ({error}): connections that are opened through it have no header"
        ));
    }
    execute(command)
}

fn prepare(args: &Args, source: SocketAddr, command: &mut Command) -> Result<Reason, ConnectError> {
    let program = examine(command.get_program(), &search_path())?;
    if args.verbose > 0 {
        write_line(format_args!("peername: {}", program.reason));
    }
    let connect = Connect {
        source,
        version: args.sent_header.proxy_version as u8,
        ports: args.listener_policy.ports.clone(),
    };
    connect.prepare(&program, command)?;
    Ok(program.reason)
}

/// Warns that the library may not be loaded: the program starts unknown other programs, or its file can't be read.
fn warn_if_unreachable(reason: &Reason) {
    if matches!(reason, Reason::Starter(_) | Reason::Unreadable(_)) {
        write_line(format_args!(
            "peername: {reason}: no library reaches static and Go programs, whose connections would have no header"
        ));
    }
}
