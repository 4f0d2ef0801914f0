//! The identity table as a file in shared memory.
//!
//! The table has a path, because a program may close every descriptor that it did not open and execute another program (as
//! sshd does), which then has nothing but its environment. The file belongs to the user who runs the program, and no other
//! user can open it: a process that can write to it can forge clients.

use std::fs::{self, DirEntry, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use peername_identity::{
    HeaderPolicy, Network, Policy, Settings, SocketListing, SourcePolicy, Table,
};
use peername_sys::ipc::shared_memory::{
    self, allocate, lock_shared, map_words, try_lock_exclusive,
};
use peername_sys::process::user;
use peername_sys::random;
use peername_sys::tcp::socket_info;

/// A table, and the path of its file. The file counts as used (flock(2)) until this process, and those that it forks, have
/// executed another program or exited.
#[derive(Clone, Debug)]
pub struct SharedTable {
    table: Table<'static>,
    path: PathBuf,
}

/// The settings of a new table; [`Policy`] describes the fields.
#[derive(Clone, Debug)]
pub struct TableRules {
    /// The peers that may send headers.
    pub networks: Vec<Network>,
    /// The ports on which headers are expected; every port, if the list is empty.
    pub ports: Vec<u16>,
    /// See [`Policy::header_required`].
    pub header_required: bool,
    /// See [`Policy::show_destination`].
    pub show_destination: bool,
    /// See [`Policy::judged_by_waiter`].
    pub judged_by_waiter: bool,
    /// See [`Policy::headers`].
    pub headers: HeaderPolicy,
    /// See [`Policy::sources`].
    pub sources: SourcePolicy,
    /// See [`Policy::max_header`].
    pub max_header: usize,
    /// See [`Policy::listing`].
    pub listing: SocketListing,
}

/// An error returned by [`SharedTable::create`].
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file can't be created or allocated.
    #[error("the table of clients, {}: {source}", path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file system is full.
    #[error(
        "the table of clients: {DIRECTORY} has no room for its {} KiB ({source}): free some, mount {DIRECTORY} with a larger size=, or \
         lower --max-connections",
        len.div_ceil(1024)
    )]
    Full {
        /// The size of the file in bytes.
        len: usize,
        /// ENOSPC or EDQUOT.
        source: io::Error,
    },
    /// The file is larger than this process may make files.
    #[error(
        "the table of clients: its file has {} KiB, more than the limit of file sizes (LimitFSIZE= of a unit, ulimit -f): raise the \
         limit, or lower --max-connections",
        len.div_ceil(1024)
    )]
    FileSizeLimit {
        /// The size of the file in bytes.
        len: usize,
    },
    /// The file can't be mapped, or there are no random numbers for it.
    #[error("the table of clients: {0}")]
    Call(#[from] peername_sys::SyscallError),
    /// The number of slots is wrong.
    #[error("{0} slots: the table of clients takes a power of two, and at least 64")]
    Slots(usize),
    /// Too many networks.
    #[error("{0} trusted networks, more than the {max} that fit; join neighbouring ones", max = Settings::MAX_NETWORKS)]
    Networks(usize),
}

impl SharedTable {
    /// Creates a table with `slots` slots, one for each connection that is open at the same time. Its file is in /dev/shm,
    /// where nothing is written to a disk. Its memory is allocated now, because any user may fill /dev/shm later.
    pub fn create(slots: usize, rules: &TableRules) -> Result<Self, TableError> {
        if rules.networks.len() > Settings::MAX_NETWORKS {
            return Err(TableError::Networks(rules.networks.len()));
        }
        remove_stale();
        let [first, second] = random::words()?;
        let path = Path::new(DIRECTORY).join(format!("{PREFIX}{first:016x}{second:016x}"));
        Self::create_at(path.clone(), slots, rules).inspect_err(|_| drop(fs::remove_file(path)))
    }

    fn create_at(path: PathBuf, slots: usize, rules: &TableRules) -> Result<Self, TableError> {
        let file_error = |source| TableError::File {
            path: path.clone(),
            source,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(file_error)?;
        // The mapping keeps the file open, and so keeps the lock; see `remove_stale`.
        lock_shared(&file).map_err(|failed| file_error(failed.source))?;
        let len = Table::size(slots);
        allocate(&file, len).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                TableError::Full { len, source }
            }
            io::ErrorKind::FileTooLarge => TableError::FileSizeLimit { len },
            _ => file_error(source),
        })?;
        let words = map_words(&file, len)?;
        let table = Table::new(words).ok_or(TableError::Slots(slots))?;
        rules.write_to(table.settings())?;
        Ok(Self { table, path })
    }

    /// The table itself.
    pub fn table(&self) -> Table<'static> {
        self.table
    }

    /// The path by which other processes open it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the path. Processes that have the table mapped keep it.
    pub fn remove(&self) {
        // An error means that the file was removed already, or that /dev/shm is missing: there is nothing to be done.
        let _ = fs::remove_file(&self.path);
    }
}

impl TableRules {
    /// Writes the settings of a table that is used in the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// An error of getrandom(2): without secrets every call could bypass the supervisor, and a client be taken for a wake-up.
    pub(crate) fn write_to(&self, settings: Settings<'_>) -> peername_sys::Result<()> {
        let [pass @ .., first, second] = random::words::<4>()?;
        settings.ports().clear();
        settings.clear_wakeup_ports();
        settings.set_wakeup_secret([first, second]);
        for &port in &self.ports {
            settings.ports().insert(port);
        }
        settings.write(self.policy(), &self.networks, pass);
        Ok(())
    }

    fn policy(&self) -> Policy {
        Policy {
            header_required: self.header_required,
            all_ports: self.ports.is_empty(),
            show_destination: self.show_destination,
            judged_by_waiter: self.judged_by_waiter,
            headers: self.headers,
            sources: self.sources,
            max_header: self.max_header,
            namespace: socket_info::current_netns_cookie(),
            listing: self.listing,
        }
    }
}

/// Removes stale tables, which no process has open: those of runs that were killed together with their supervisor.
fn remove_stale() {
    for entry in fs::read_dir(DIRECTORY).into_iter().flatten().flatten() {
        if is_old_table(&entry)
            && let Ok(file) = shared_memory::open(&entry.path())
            && try_lock_exclusive(&file)
        {
            // Another launcher may have removed it already.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether the entry is the file of a table that is not new, and that this user may remove: root may remove those of every
/// user, other users only their own.
fn is_old_table(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    if !name.to_str().is_some_and(|name| name.starts_with(PREFIX)) {
        return false;
    }
    // Metadata of the entry itself, which may be another user's symbolic link.
    let Ok(metadata) = entry.metadata() else {
        return false;
    };
    let is_own = user::is_root() || metadata.uid() == user::effective_uid();
    let age = metadata.modified().ok().and_then(|at| at.elapsed().ok());
    metadata.is_file() && is_own && age.is_some_and(|age| age > STALE_AFTER)
}

const DIRECTORY: &str = "/dev/shm";
const PREFIX: &str = "peername-";
/// The minimum age of a stale table: a new one is not locked yet for a moment.
const STALE_AFTER: Duration = Duration::from_secs(30);
