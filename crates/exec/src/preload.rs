//! `--mode preload`: the library is loaded into the program, and a supervisor runs beside it.
//!
//! A process of the program may lose the library: its parent gave it another environment, it is static, or it was
//! executed with more privileges (ld.so(8)). The kernel lets no accept(2) through that does not come from the library
//! ([`peername_identity::Settings::pass`]); the supervisor of [`crate::notify`] answers the others. So every process
//! knows the clients that it accepts, with or without the library.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use peername_sys::seccomp::NoNewPrivs;

use crate::client_judge::ClientJudge;
use crate::library::preloaded;
use crate::notify::{self, NotifyError};
use crate::table::SharedTable;

/// The configuration of `--mode preload`.
#[derive(Debug)]
pub struct Preload {
    /// The library, see [`crate::library`].
    pub library: PathBuf,
    /// The table of clients.
    pub table: SharedTable,
    /// From accept to the complete header.
    pub header_timeout: Duration,
    /// See [`notify::SupervisorConfig::clients`].
    pub clients: Option<Rc<dyn ClientJudge>>,
    /// See [`notify::SupervisorConfig::verbose`].
    pub verbose: bool,
    /// See [`notify::SupervisorConfig::admin`].
    pub admin: Option<OwnedFd>,
}

impl Preload {
    /// Starts the supervisor of this process, which is to become the program, and sets the library's variables in the
    /// environment of `command`. The supervisor exits by itself, after the last process of the program.
    ///
    /// This process must have one thread only.
    ///
    /// # Errors
    ///
    /// [`NotifyError`]: the supervisor can't be started. The table is removed then.
    pub fn prepare(self, command: &mut Command) -> Result<NoNewPrivs, NotifyError> {
        command.env("LD_PRELOAD", preloaded(&self.library));
        command.env("PEERNAME_TABLE", self.table.path());
        let started = notify::start(notify::SupervisorConfig {
            table: self.table.table(),
            header_timeout: self.header_timeout,
            library: Some(self.table.clone()),
            clients: self.clients,
            verbose: self.verbose,
            admin: self.admin,
        });
        started.inspect_err(|_| self.table.remove())
    }
}
