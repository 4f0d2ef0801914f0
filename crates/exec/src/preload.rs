//! `--mode preload`: the library is loaded into the program, and an attendant runs beside it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use peername_sys::detach::detached;
use peername_sys::pidfd::Process;
use peername_sys::{Failed, NameCall};

use crate::attendant::{Attendant, Channel, run};
use crate::library::preloaded;
use crate::table::{Rules, SharedTable, TableError};

/// What a run with the library needs.
#[derive(Debug)]
pub struct Preload {
    /// The library, see [`crate::library`].
    pub library: PathBuf,
    /// What its table says.
    pub rules: Rules,
    /// Connections that may be open at the same time: a power of two, at least 64.
    pub slots: usize,
    /// From accept to the complete header.
    pub header_timeout: Duration,
}

impl Preload {
    /// Starts the attendant of this process, which is to become the program, and gives `command` what
    /// the library needs to find it. The attendant ends by itself, soon after the last process that has
    /// the library loaded.
    ///
    /// # Errors
    ///
    /// [`PreloadError`]. This process must have one thread only.
    pub fn prepare(&self, command: &mut Command) -> Result<(), PreloadError> {
        let shared = SharedTable::create(self.slots, &self.rules)?;
        self.start_attendant(&shared)
            .inspect_err(|_| shared.remove())?;
        command.env("LD_PRELOAD", preloaded(&self.library));
        command.env("PEERNAME_TABLE", shared.path());
        Ok(())
    }

    fn start_attendant(&self, shared: &SharedTable) -> Result<(), Failed> {
        let settings = shared.table().settings();
        let channel = Channel::open(settings)?;
        let program = Process::current()?;
        let file = shared.descriptor().call("fcntl(F_DUPFD_CLOEXEC)")?;
        let timeout = self.header_timeout;
        detached(
            [file, channel.into(), program.into()],
            |[file, channel, program]| {
                let shared = shared.in_child(file);
                let attended = attend(&shared, channel, &program.into(), timeout);
                shared.remove();
                match attended {
                    Ok(()) => 0,
                    Err(error) => {
                        eprintln!("peername: the attendant of slow headers: {error}");
                        1
                    }
                }
            },
        )
    }
}

fn attend(
    shared: &SharedTable,
    channel: OwnedFd,
    program: &Process,
    timeout: Duration,
) -> Result<(), Failed> {
    peername_sys::limits::raise_open_files()?;
    let attendant = Attendant::new(shared.table(), timeout)?;
    let channel = Channel::on(channel, shared.table().settings());
    run(attendant, channel, shared, program)
}

/// Why a program can't be started with the library.
#[derive(Debug, thiserror::Error)]
pub enum PreloadError {
    /// The table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A system call.
    #[error("the attendant of slow headers: {0}")]
    Attendant(#[from] Failed),
}
