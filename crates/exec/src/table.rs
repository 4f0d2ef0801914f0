//! The table of identities as a file in memory.
//!
//! It has a path, because a program may close every descriptor it did not open and run another one
//! (sshd does), which then has nothing but its environment. It belongs to the user who runs the
//! program, and no other user may open it: a process that can write to it can forge clients.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use peername_identity::{Network, Policy, Secrets, SourcePolicy, Table};
use peername_sys::ipc::shared_memory::{self, lock_shared, map_words, try_lock_exclusive};
use peername_sys::process::user;
use peername_sys::random;
use peername_sys::tcp::socket_info;

/// A table, and the path of the file it is in. The file counts as used for as long as this process, or one that it
/// forks, has not executed another program.
#[derive(Clone, Debug)]
pub struct SharedTable {
    table: Table<'static>,
    path: PathBuf,
}

/// What the table is to say; see [`Policy`] for the words' meaning.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The peers that may send headers.
    pub networks: Vec<Network>,
    /// The ports whose listeners expect headers; none for all.
    pub ports: Vec<u16>,
    /// See [`Policy::header_required`].
    pub header_required: bool,
    /// See [`Policy::show_destination`].
    pub show_destination: bool,
    /// See [`Policy::sources`].
    pub sources: SourcePolicy,
    /// See [`Policy::max_header`].
    pub max_header: usize,
}

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file can't be made or sized.
    #[error("the table of clients, {}: {source}", path.display())]
    File {
        /// Where it was to be.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It can't be mapped.
    #[error("the table of clients: {0}")]
    Map(#[from] peername_sys::SyscallError),
    /// The number of slots is wrong.
    #[error("{0} slots: the table of clients takes a power of two, and at least 64")]
    Slots(usize),
    /// More networks than there is room for.
    #[error("{0} trusted networks, more than the {max} that fit; join neighbouring ones", max = peername_identity::Settings::MAX_NETWORKS)]
    Networks(usize),
}

impl SharedTable {
    /// Makes one with so many slots, for connections that are open at the same time: in /dev/shm,
    /// where nothing is written to a disk, and only pages that are used take memory.
    ///
    /// # Errors
    ///
    /// [`TableError`].
    pub fn create(slots: usize, rules: &Rules) -> Result<Self, TableError> {
        if rules.networks.len() > peername_identity::Settings::MAX_NETWORKS {
            return Err(TableError::Networks(rules.networks.len()));
        }
        remove_forgotten();
        let secrets = Secrets {
            name: random::words(),
            request: random::words(),
            pass: random::words(),
        };
        let [first, second] = secrets.name;
        let path = Path::new(DIRECTORY).join(format!("{PREFIX}{first:016x}{second:016x}"));
        let in_file = |source| TableError::File {
            path: path.clone(),
            source,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(in_file)?;
        // The lock lives as long as the mapping, which keeps the open file; see `remove_forgotten`.
        lock_shared(&file).map_err(|failed| in_file(failed.source))?;
        let len = Table::size(slots);
        file.set_len(len as u64).map_err(in_file)?;
        let words = map_words(&file, len)?;
        let table = Table::new(words).ok_or(TableError::Slots(slots))?;
        rules
            .ports
            .iter()
            .for_each(|&port| _ = table.settings().ports().insert(port));
        table
            .settings()
            .write(rules.policy(), &rules.networks, secrets);
        Ok(Self { table, path })
    }

    /// The table itself.
    pub fn table(&self) -> Table<'static> {
        self.table
    }

    /// Where others find it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the path. Processes that have the table mapped keep it.
    pub fn remove(&self) {
        // Gone already, or /dev/shm is: either way there is nothing to be done.
        let _ = fs::remove_file(&self.path);
    }
}

impl Rules {
    fn policy(&self) -> Policy {
        Policy {
            header_required: self.header_required,
            all_ports: self.ports.is_empty(),
            show_destination: self.show_destination,
            sources: self.sources,
            max_header: self.max_header,
            waiter_user: user::effective_uid(),
            namespace: socket_info::current_netns_cookie(),
        }
    }
}

/// Removes the tables that no process has open: those of runs that were killed with their supervisor. Other
/// users' can't be opened, and are theirs to remove.
fn remove_forgotten() {
    let entries = fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    let ours = |name: &str| name.starts_with(PREFIX);
    for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(ours)) {
        // Of the entry itself: it may be another user's link.
        let old = entry.metadata().is_ok_and(|about| {
            let age = about.modified().ok().and_then(|at| at.elapsed().ok());
            let own = about.is_file() && about.uid() == user::effective_uid();
            own && age.is_some_and(|age| age > FORGOTTEN_AFTER)
        });
        let file = old.then(|| shared_memory::open(&entry.path()));
        if let Some(Ok(file)) = file
            && try_lock_exclusive(&file)
        {
            // Another launcher may have been quicker.
            let _ = fs::remove_file(entry.path());
        }
    }
}

const DIRECTORY: &str = "/dev/shm";
const PREFIX: &str = "peername-";
/// A table that is being made is not locked yet, for a moment.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);
