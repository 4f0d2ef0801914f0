//! `peername exec --connect`: the client's side.

use std::net::SocketAddr;
use std::process::{Command, ExitCode};

use peername_exec::connect::{Connect, ConnectError};
use peername_exec::program::{Reason, examine, search_path};

use super::refuse_io_uring;
use crate::launcher::{self, execute};

/// Options for the contents of the client's headers.
#[derive(Debug, clap::Args)]
pub(super) struct Client {
    /// With --connect: the client address in the headers, such as 192.0.2.1:4711 or `[2001:db8::1]:4711`
    #[arg(long, value_name = "ADDR:PORT", requires = "connect")]
    pub(super) source: Option<SocketAddr>,
    /// With --connect: the version of the headers
    #[arg(
        long,
        value_name = "VERSION",
        default_value = "2",
        requires = "connect"
    )]
    proxy_version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Version {
    /// Text
    #[value(name = "1", alias = "v1")]
    V1,
    /// Binary
    #[value(name = "2", alias = "v2")]
    V2,
}

/// Becomes the client; returns only if that fails.
pub(super) fn run(args: &super::Args, source: SocketAddr) -> ExitCode {
    let mut command = launcher::command(&args.command);
    match prepare(args, source, &mut command) {
        Ok(reason) => warn(&reason),
        Err(error) => return failed(&error),
    }
    refuse_io_uring("connections that are opened through it have no header");
    execute(command)
}

fn prepare(
    args: &super::Args,
    source: SocketAddr,
    command: &mut Command,
) -> Result<Reason, ConnectError> {
    let program = examine(command.get_program(), &search_path())?;
    if args.verbose > 0 {
        eprintln!("peername: {}", program.reason);
    }
    let connect = Connect {
        source,
        version: args.client.version(),
        ports: args.ports.clone(),
    };
    connect.prepare(&program, command)?;
    Ok(program.reason)
}

impl Client {
    fn version(&self) -> u8 {
        match self.proxy_version {
            Version::V1 => 1,
            Version::V2 => 2,
        }
    }
}

fn warn(reason: &Reason) {
    if let Reason::Starter(path) = reason {
        eprintln!(
            "peername: {} may start static or Go programs, which no library reaches: their connections \
             would have no header",
            path.display()
        );
    }
}

fn failed(error: &ConnectError) -> ExitCode {
    eprintln!("peername: {error}");
    ExitCode::from(error.exit_code())
}
