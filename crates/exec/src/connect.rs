//! `--connect`: a client, each of whose TCP connections begins with a PROXY header.
//!
//! A library is loaded into it, which is told by environment variables what to say. Nothing runs beside.

use std::fs;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;

use crate::library::{Library, LibraryError, preloaded};
use crate::program::{Program, ProgramError, Reason};

/// What the headers say, and which connections have one.
#[derive(Clone, Debug)]
pub struct Connect {
    /// The client that they name.
    pub source: SocketAddr,
    /// 1 or 2.
    pub version: u8,
    /// Connections to these ports; to all if there are none.
    pub ports: Vec<RangeInclusive<u16>>,
}

impl Connect {
    /// Gives `command`, which runs `program`, the library and what it has to know.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: its connections would have no header.
    pub fn prepare(&self, program: &Program, command: &mut Command) -> Result<(), ConnectError> {
        if !program.loads_libraries() {
            return Err(ConnectError::Unreached(program.reason.clone()));
        }
        if !can_open_with_data() {
            return Err(ConnectError::FastOpen);
        }
        let library = Library::Connect.find()?;
        command.env("LD_PRELOAD", preloaded(&library));
        command.env("PEERNAME_SOURCE", self.source.to_string());
        command.env("PEERNAME_PROXY_VERSION", self.version.to_string());
        match self.ports.is_empty() {
            true => command.env_remove("PEERNAME_PORTS"),
            false => command.env("PEERNAME_PORTS", self.port_list()),
        };
        Ok(())
    }

    fn port_list(&self) -> String {
        let ranges = self.ports.iter();
        let ranges = ranges.map(|ports| format!("{}-{}", ports.start(), ports.end()));
        ranges.collect::<Vec<_>>().join(",")
    }
}

/// Whether connections may begin with data (net.ipv4.tcp_fastopen, ip-sysctl of the kernel's
/// documentation). Where that can't be read, the library will tell.
fn can_open_with_data() -> bool {
    let setting = fs::read_to_string("/proc/sys/net/ipv4/tcp_fastopen").ok();
    let bits = setting.and_then(|text| text.trim().parse::<u32>().ok());
    bits.is_none_or(|bits| bits & 1 != 0)
}

/// Why a client can't be started so that its connections have a header.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// It can't be run.
    #[error(transparent)]
    Program(ProgramError),
    /// It gains privileges.
    #[error(
        "{} gains {what} by being executed: such programs ignore LD_PRELOAD. Start it as the user it \
         would become",
        path.display()
    )]
    Privileged {
        /// The file.
        path: PathBuf,
        /// What it gains.
        what: &'static str,
    },
    /// Our library can't be loaded into it.
    #[error(
        "{0}: no library of ours can be loaded into it, and its connections would have no header. \
             Let it connect to `peername forward --source …` instead"
    )]
    Unreached(Reason),
    /// The kernel is told not to.
    #[error(
        "connections can't begin with data here, and so not with a header: \
             sysctl -w net.ipv4.tcp_fastopen=1"
    )]
    FastOpen,
    /// The library.
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
    /// That of a shell for a program that can't be run (126, 127), else the launcher's own (125).
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Program(error) => error.exit_code(),
            _ => 125,
        }
    }
}
