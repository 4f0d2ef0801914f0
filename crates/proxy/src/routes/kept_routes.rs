//! The rules and routes that a keeper has installed in a slot of their own, and its packet filter tables.

use std::num::NonZeroU32;

use peername_sys::NameCall;
use peername_sys::netlink::{self, Netlink};
use peername_sys::process::caps::{self, CapabilitySet};

use super::backend_rule::{BackendRule, rules_for};
use super::error::Error;
use super::install::{InstalledRoutes, OnConflict};
use super::nftables::{self, FilterRules, KeptTable};
use super::table_slot::{SlotLock, TableSlot, remove_unused_locks};
use super::{fwmark, inventory};
use crate::backend::Backend;

/// The rules, routes and tables that this process has installed, and the lock of their slot.
pub(super) struct KeptRoutes {
    netlink: Netlink,
    slot: TableSlot,
    installed: InstalledRoutes,
    tables: Vec<KeptTable>,
    /// A note for the log about a table that could not be installed, and is not necessary.
    note: Option<String>,
    /// Dropped last: until everything is removed, the slot must not look free.
    _lock: SlotLock,
}

impl KeptRoutes {
    /// Gives up every capability but CAP_NET_ADMIN, which is also passed to nft(8), and installs everything in a free slot.
    pub(super) async fn install(targets: &[Backend], marks: &[NonZeroU32]) -> Result<Self, Error> {
        caps::keep_only_and_pass(CapabilitySet::NET_ADMIN)?;
        remove_unused_locks();
        let netlink = Netlink::open()?;
        let (rules, marks) = match rules_for(&netlink, targets, false).await {
            Err(Error::OtherHost(_)) if !marks.is_empty() => {
                (rules_for(&netlink, targets, true).await?, marks)
            }
            // Replies of backends on this host need no mark.
            rules => (rules?, &[][..]),
        };
        let taken = TakenSlot::take(&netlink, &rules).await?;
        let mut kept = Self {
            netlink,
            slot: taken.slot,
            installed: taken.installed,
            tables: Vec::new(),
            note: None,
            _lock: taken.lock,
        };
        match kept.install_tables(marks).await {
            Ok(()) => Ok(kept),
            Err(error) => {
                // The installation's error says more than one of the removal would.
                let _ = kept.release().await;
                Err(error)
            }
        }
    }

    async fn install_tables(&mut self, marks: &[NonZeroU32]) -> Result<(), Error> {
        let owner = self.slot.table();
        // Removes tables that a killed keeper has left. If that fails, so does the installation of tables.
        let _ = nftables::remove_owned(owner);
        if !marks.is_empty() {
            fwmark::install_rules(&self.netlink, self.slot, &mut self.installed).await?;
        }
        for &mark in marks {
            let owner = Some(owner);
            let table = KeptTable::install(FilterRules::Replies { mark, owner })?;
            self.tables.push(table);
        }
        let Some(untracked) = FilterRules::untracked(self.installed.backend_rules(), owner) else {
            return Ok(());
        };
        match KeptTable::install(untracked) {
            Ok(table) => self.tables.push(table),
            Err(error) => {
                self.note = Some(format!(
                    "NAT rules of this host apply to connections to the backend, too, because they can't be exempted \
                     from connection tracking: {error}"
                ));
            }
        }
        Ok(())
    }

    /// Takes the note for the log, if there is one.
    pub(super) fn take_note(&mut self) -> Option<String> {
        self.note.take()
    }

    /// The number of the routing table.
    pub(super) fn table(&self) -> u32 {
        self.slot.table()
    }

    /// Installs missing rules, routes and tables again, and returns them in the syntax of ip(8) and nft(8).
    pub(super) async fn restore(&self) -> Result<Vec<String>, Error> {
        let mut restored = self.installed.restore(&self.netlink).await?;
        for table in &self.tables {
            restored.extend(table.restore()?);
        }
        Ok(restored)
    }

    /// Removes everything. Continues after an error and returns the first.
    pub(super) async fn release(self) -> Result<(), Error> {
        let mut outcome = self
            .installed
            .undo(&self.netlink)
            .await
            .map_err(Error::from);
        for table in &self.tables {
            let deleted = table.delete();
            outcome = outcome.and(deleted);
        }
        outcome
    }
}

/// A locked slot with the rules that were installed in it.
struct TakenSlot {
    slot: TableSlot,
    installed: InstalledRoutes,
    lock: SlotLock,
}

impl TakenSlot {
    /// Locks a free slot and installs the rules in it.
    async fn take(netlink: &Netlink, rules: &[BackendRule]) -> Result<Self, Error> {
        for slot in TableSlot::running() {
            let Some(lock) = slot.try_lock().call("bind(AF_UNIX)")? else {
                continue;
            };
            inventory::remove_leftovers(netlink, slot).await?;
            if let Some(taken) = Self::install(netlink, slot, lock, rules).await? {
                return Ok(taken);
            }
        }
        // The names may all be taken, because any local process can bind them. Then a slot is locked by its file alone.
        for slot in TableSlot::running() {
            let Some(lock) = slot.try_lock_file() else {
                continue;
            };
            if inventory::is_occupied(netlink, slot).await? {
                continue;
            }
            if let Some(taken) = Self::install(netlink, slot, lock, rules).await? {
                return Ok(taken);
            }
        }
        Err(Error::NoFreeSlot)
    }

    /// Installs the rules in a locked slot. `None` where another program uses the slot's numbers.
    async fn install(
        netlink: &Netlink,
        slot: TableSlot,
        lock: SlotLock,
        rules: &[BackendRule],
    ) -> Result<Option<Self>, Error> {
        match InstalledRoutes::install(netlink, slot, rules, OnConflict::Fail).await {
            Ok(installed) => Ok(Some(Self {
                slot,
                installed,
                lock,
            })),
            Err(Error::Syscall(error)) if netlink::already_exists(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
