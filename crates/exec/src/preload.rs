//! `--mode preload`: the library is loaded into the program, and an attendant runs beside it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use peername_sys::detach::detached;
use peername_sys::pidfd::Process;
use peername_sys::{Failed, NameCall};

use crate::attendant::{Attendant, Channel, run};
use crate::table::{Rules, SharedTable, TableError};

/// What a run with the library needs.
#[derive(Debug)]
pub struct Preload {
    /// The library, see [`library`].
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
        command.env("LD_PRELOAD", self.preloaded());
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

    /// What was to be preloaded stays so.
    fn preloaded(&self) -> OsString {
        let mut all = self.library.clone().into_os_string();
        if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            all.push(":");
            all.push(others);
        }
        all
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

/// Finds the library that belongs to this binary: beside it as it is installed (`bin/`, `lib/peername/`),
/// or in its own directory, as in a build tree.
///
/// # Errors
///
/// [`LibraryError`].
pub fn library() -> Result<PathBuf, LibraryError> {
    let binary = env::current_exe()
        .and_then(fs::canonicalize)
        .map_err(LibraryError::Binary)?;
    let own = binary.parent().unwrap_or_else(|| Path::new("/"));
    let installed = own.parent().unwrap_or(own).join("lib/peername").join(NAME);
    let candidates = [installed, own.join(NAME)];
    match candidates.iter().find(|path| path.exists()) {
        Some(path) => check(path).map(|()| path.clone()),
        None => Err(LibraryError::Missing(candidates)),
    }
}

/// Whoever can change the library can change the program.
fn check(path: &Path) -> Result<(), LibraryError> {
    let unreadable = |source| LibraryError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let about = fs::metadata(path).map_err(unreadable)?;
    let user = peername_sys::user::effective();
    if ![0, user].contains(&about.uid()) || about.mode() & 0o022 != 0 {
        return Err(LibraryError::Writable(path.to_owned()));
    }
    let content = fs::read(path).map_err(unreadable)?;
    let has_mark = content.windows(MARK.len()).any(|part| part == MARK);
    // The dynamic linker takes spaces and colons for the end of a name (ld.so(8)).
    let listable = !path.to_string_lossy().contains([' ', ':']);
    match (has_mark, listable) {
        (false, _) => Err(LibraryError::Other(path.to_owned())),
        (_, false) => Err(LibraryError::Unlistable(path.to_owned())),
        _ => Ok(()),
    }
}

/// Why there is no library to be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// Where this binary is can't be found out.
    #[error("where this program is installed can't be found out (/proc/self/exe): {0}")]
    Binary(io::Error),
    /// It is nowhere.
    #[error(
        "libpeername.so is neither {} nor {}; install it beside the binary (`make libraries` in a source \
         tree), or use --mode notify",
        .0[0].display(), .0[1].display()
    )]
    Missing([PathBuf; 2]),
    /// It can't be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The library.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others may change it.
    #[error("{}: somebody else may change it, and with it the program: it must belong to root or to you, \
             and not be writable by group or others", .0.display())]
    Writable(PathBuf),
    /// It is of another version.
    #[error("{}: not the libpeername.so of this version; install both from one build", .0.display())]
    Other(PathBuf),
    /// Its path has a character that ends a name.
    #[error("{}: LD_PRELOAD can't hold a path with a space or a colon; install peername elsewhere", .0.display())]
    Unlistable(PathBuf),
}

const NAME: &str = "libpeername.so";
/// The symbol by which the library says which version of the table it reads (`crates/preload`).
const MARK: &[u8] = b"\0peername_preload_1\0";
