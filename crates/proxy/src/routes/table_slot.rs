//! Slots: a routing table number and a rule priority for each owner of rules.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

/// The table number and rule priority of one owner. Slot 0 is the administrator's, the others are for running proxies.
///
/// Priorities: below 32766, where the main table ends the search, and below Tailscale's (5210 and
/// up): its catch-all rule would capture the replies when an exit node is used. Above the kernel's
/// VRF rule (1000) and the small numbers that container networks use (Cilium 9 to 111, the VPC CNI
/// of AWS 512 to 1536); none of those routes by a loopback source. Table numbers: above the 255 that
/// have names, away from the round ones that people choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TableSlot(u32);

impl TableSlot {
    /// The slot of `peername routes add`.
    pub(super) const ADMINISTRATOR: Self = Self(0);

    /// The slots of running proxies, in the order in which they are tried.
    pub(super) fn running() -> impl Iterator<Item = Self> {
        (1..=RUNNING_SLOTS).map(Self)
    }

    /// Priority of the rules in this slot.
    pub(super) fn priority(self) -> u32 {
        FIRST_PRIORITY + self.0
    }

    /// Number of the routing table, the same for IPv4 and IPv6.
    pub(super) fn table(self) -> u32 {
        FIRST_TABLE + self.0
    }

    /// The slot of a table number.
    pub(super) fn from_table(table: u32) -> Option<Self> {
        let number = table.checked_sub(FIRST_TABLE)?;
        (number <= RUNNING_SLOTS).then_some(Self(number))
    }

    /// Locks the slot for as long as the returned value lives. `None` where another process has locked it.
    ///
    /// The lock is the name of an abstract UNIX socket. Only one socket at a time can have a name, the kernel releases the name
    /// however the process exits, and each network namespace has names of its own, as it has rules of its own. A process id
    /// has none of these properties: it is reused, it must be looked up, and in another container it means another process.
    /// If this process is root, it also locks a file: see [`TableSlot::try_lock_file`].
    ///
    /// # Errors
    ///
    /// bind(2) fails for another reason than EADDRINUSE.
    pub(super) fn try_lock(self) -> io::Result<Option<SlotLock>> {
        let name = format!("peername-routes-{}", self.0);
        let address = SocketAddr::from_abstract_name(name)?;
        let name = match UnixDatagram::bind_addr(&address) {
            Ok(socket) => Some(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Ok(None),
            Err(error) => return Err(error),
        };
        let file = match self.lock_file() {
            FileLock::Locked(file) => Some(file),
            FileLock::Unavailable => None,
            FileLock::Busy => return Ok(None),
        };
        Ok(Some(SlotLock {
            _name: name,
            _file: file,
        }))
    }

    /// Locks the slot by its file alone, for when no name is free: any local user can bind all names, but only root can lock a
    /// file. Each network namespace has files of its own. `None` where another process has locked the file, or this process
    /// can't.
    ///
    /// A container that shares the network namespace, but has its own /run, does not see this lock. So the slot may be used
    /// only if it is empty, and nothing in it may be removed.
    pub(super) fn try_lock_file(self) -> Option<SlotLock> {
        match self.lock_file() {
            FileLock::Locked(file) => Some(SlotLock {
                _name: None,
                _file: Some(file),
            }),
            FileLock::Busy | FileLock::Unavailable => None,
        }
    }

    fn lock_file(self) -> FileLock {
        let open = || {
            match DirBuilder::new().mode(0o700).create(LOCK_DIR) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            let network = fs::metadata("/proc/self/ns/net")?.ino();
            let path = Path::new(LOCK_DIR).join(format!("{network}-{}", self.0));
            let mut options = File::options();
            options.write(true).create(true).truncate(false).mode(0o600);
            options.open(path)
        };
        let Ok(file) = open() else {
            return FileLock::Unavailable;
        };
        match file.try_lock() {
            // Another process has removed the file in [`remove_unused_locks`].
            Ok(()) if is_removed(&file) => FileLock::Busy,
            Ok(()) => FileLock::Locked(file),
            Err(TryLockError::WouldBlock) => FileLock::Busy,
            Err(TryLockError::Error(_)) => FileLock::Unavailable,
        }
    }
}

/// Removes the lock files that no process holds: those of network namespaces that do not exist any more, and of keepers that
/// have exited. Each is removed while it is locked.
pub(super) fn remove_unused_locks() {
    let Ok(entries) = fs::read_dir(LOCK_DIR) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if let Ok(file) = File::options().write(true).open(&path)
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(&path);
        }
    }
}

fn is_removed(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
}

/// Holds the lock of a slot.
#[derive(Debug)]
pub(super) struct SlotLock {
    _name: Option<UnixDatagram>,
    _file: Option<File>,
}

enum FileLock {
    Locked(File),
    Busy,
    /// This process is not root, or there is no writable /run.
    Unavailable,
}

/// The directory of the lock files, which only root can enter.
const LOCK_DIR: &str = "/run/peername-routes";

/// The number that marks rules and routes as peername's (`rtm_protocol`, FRA_PROTOCOL).
///
/// It is neither in the kernel's list (`linux/rtnetlink.h` ends at 192, EIGRP) nor in FRR's, which continues that up to 198.
/// `show` and `remove` find peername's entries by this number alone: with another, they would overlook those of an older
/// peername.
pub const PROTOCOL: u8 = 211;

/// Limit of proxies that have rules at once: more than run on one host, and few enough to be tried one by one. With thousands,
/// the last priorities would reach those of other programs.
pub(super) const RUNNING_SLOTS: u32 = 63;

const FIRST_PRIORITY: u32 = 2110;
const FIRST_TABLE: u32 = 21100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_slots_share_a_number() {
        let mut all: Vec<_> = TableSlot::running()
            .chain([TableSlot::ADMINISTRATOR])
            .collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), RUNNING_SLOTS as usize + 1);
        for slot in all {
            assert!(slot.priority() < 5210 && slot.priority() > 1536);
            assert_eq!(TableSlot::from_table(slot.table()), Some(slot));
        }
        assert_eq!(TableSlot::from_table(FIRST_TABLE - 1), None);
        assert_eq!(TableSlot::from_table(FIRST_TABLE + RUNNING_SLOTS + 1), None);
    }

    #[test]
    fn slot_is_locked_by_one_owner_at_a_time() {
        let slot = TableSlot(RUNNING_SLOTS);
        let first = slot.try_lock().unwrap().expect("free");
        assert!(slot.try_lock().unwrap().is_none());
        drop(first);
        assert!(slot.try_lock().unwrap().is_some());
    }
}
