//! `--connect`: starts a client whose TCP connections begin with a PROXY header.
//!
//! A library is loaded into the client, and configured by environment variables. No other process runs beside it.

use std::fs;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;

use peername_sys::process::launch::exit_code;

use crate::library::{Library, LibraryError, ld_preload_value};
use crate::program::{Program, ProgramError, Reason};

/// The contents of the headers, and the ports they apply to.
#[derive(Clone, Debug)]
pub struct Connect {
    /// The client that the headers name.
    pub source: SocketAddr,
    /// The version of the headers: 1 or 2.
    pub version: u8,
    /// Connections to these ports begin with a header; connections to every port, if the list is empty.
    pub ports: Vec<RangeInclusive<u16>>,
}

impl Connect {
    /// Sets the library and its variables in the environment of `command`, which runs `program`.
    pub fn prepare(&self, program: &Program, command: &mut Command) -> Result<(), ConnectError> {
        if !program.loads_libraries() {
            return Err(ConnectError::Unreached(program.reason.clone()));
        }
        if !is_fast_open_enabled() {
            return Err(ConnectError::FastOpen);
        }
        let library = Library::Connect.find()?;
        command.env("LD_PRELOAD", ld_preload_value(&library));
        command.env("PEERNAME_SOURCE", self.source.to_string());
        command.env("PEERNAME_PROXY_VERSION", self.version.to_string());
        if self.ports.is_empty() {
            command.env_remove("PEERNAME_PORTS");
        } else {
            command.env("PEERNAME_PORTS", self.port_list());
        }
        Ok(())
    }

    fn port_list(&self) -> String {
        let ranges: Vec<_> = self
            .ports
            .iter()
            .map(|ports| format!("{}-{}", ports.start(), ports.end()))
            .collect();
        ranges.join(",")
    }
}

/// Whether the kernel allows data in a SYN: the client bit of net.ipv4.tcp_fastopen (Documentation/networking/ip-sysctl.rst of
/// the kernel). If the setting can't be read, it is assumed to be on: the library reports the kernel's error.
fn is_fast_open_enabled() -> bool {
    let setting = fs::read_to_string("/proc/sys/net/ipv4/tcp_fastopen").ok();
    let bits = setting.and_then(|text| text.trim().parse::<u32>().ok());
    bits.is_none_or(|bits| bits & CLIENT_BIT != 0)
}

/// An error returned by [`Connect::prepare`]: the client's connections would have no header.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The client can't be run.
    #[error(transparent)]
    Program(ProgramError),
    /// The client gains privileges by being executed.
    #[error(
        "{} gains {what} by being executed: such programs ignore LD_PRELOAD. Start it as the user it \
         would become",
        path.display()
    )]
    Privileged {
        /// The file.
        path: PathBuf,
        /// The kind of privileges.
        what: &'static str,
    },
    /// The library can't be loaded into the client.
    #[error(
        "{0}: no library can be loaded into it, and its connections would have no header. \
             Let it connect to `peername forward --source …` instead"
    )]
    Unreached(Reason),
    /// TCP Fast Open is disabled.
    #[error(
        "TCP Fast Open is disabled for clients, so connections can't begin with a header: \
             sysctl -w net.ipv4.tcp_fastopen=1"
    )]
    FastOpen,
    /// The library is missing or unusable.
    #[error(transparent)]
    Library(#[from] LibraryError),
}

impl From<ProgramError> for ConnectError {
    fn from(error: ProgramError) -> Self {
        match error {
            ProgramError::Privileged { path, what } => Self::Privileged { path, what },
            other => Self::Program(other),
        }
    }
}

impl ConnectError {
    /// The exit code: that of shells for a program that can't be run (126, 127), else the launcher's own (125).
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Program(error) => error.exit_code(),
            _ => exit_code::LAUNCHER_FAILED,
        }
    }
}

/// The bit of net.ipv4.tcp_fastopen for clients.
const CLIENT_BIT: u32 = 1;
