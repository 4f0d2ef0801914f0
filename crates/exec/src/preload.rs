//! `--mode preload`: the library is loaded into the program, and a supervisor runs beside it.
//!
//! A process of the program may lose the library: its parent gave it another environment, it is static, or it was
//! executed with more privileges (ld.so(8)). The kernel lets no accept(2) through that does not come from the library
//! ([`peername_identity::Secrets::pass`]); the supervisor of [`crate::notify`] answers the others. So every process
//! knows the clients that it accepts, with or without the library.

use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use peername_sys::seccomp::NoNewPrivs;

use crate::client_judge::ClientJudge;
use crate::library::preloaded;
use crate::notify::{self, NotifyError};
use crate::table::{Rules, SharedTable, TableError};

/// The configuration of `--mode preload`.
#[derive(Debug)]
pub struct Preload {
    /// The library, see [`crate::library`].
    pub library: PathBuf,
    /// The settings of the table.
    pub rules: Rules,
    /// Connections that may be open at the same time: a power of two, at least 64.
    pub slots: usize,
    /// From accept to the complete header.
    pub header_timeout: Duration,
    /// See [`notify::SupervisorConfig::clients`].
    pub clients: Option<Rc<dyn ClientJudge>>,
    /// See [`notify::SupervisorConfig::verbose`].
    pub verbose: bool,
}

impl Preload {
    /// Starts the supervisor of this process, which is to become the program, and sets the library's variables in the
    /// environment of `command`. The supervisor exits by itself, after the last process of the program.
    ///
    /// This process must have one thread only.
    ///
    /// # Errors
    ///
    /// [`PreloadError`]: the table can't be created, or the supervisor can't be started.
    pub fn prepare(&self, command: &mut Command) -> Result<NoNewPrivs, PreloadError> {
        let shared = SharedTable::create(self.slots, &self.rules)?;
        command.env("LD_PRELOAD", preloaded(&self.library));
        command.env("PEERNAME_TABLE", shared.path());
        let started = notify::start(notify::SupervisorConfig {
            table: shared.table(),
            header_timeout: self.header_timeout,
            library: Some(shared.clone()),
            clients: self.clients.clone(),
            verbose: self.verbose,
        });
        Ok(started.inspect_err(|_| shared.remove())?)
    }
}

/// Why a program can't be started with the library.
#[derive(Debug, thiserror::Error)]
pub enum PreloadError {
    /// The table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The supervisor.
    #[error(transparent)]
    Supervisor(#[from] NotifyError),
}
