//! Finds peername's rules, routes and tables on this host, and removes them.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

use peername_sys::Result as SysResult;
use peername_sys::netlink::{LocalRoute, Netlink, Rule, Selector};

use super::error::Error;
use super::install::ignore_missing;
use super::nftables::{self, NftTable};
use super::table_slot::{PROTOCOL, SlotLock, TableSlot};

/// A rule, a route or a packet filter table of peername's, found on this host. Displayed in the syntax of `ip rule`,
/// `ip route` or `nft`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingEntry {
    /// Its owner.
    pub owner: EntryOwner,
    kind: EntryKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum EntryKind {
    Routing(RuleOrRoute),
    Filter(NftTable),
}

/// The owner of a rule or route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryOwner {
    /// The administrator, with `peername routes add`.
    Administrator,
    /// A running proxy.
    RunningProxy,
    /// A proxy that has exited; its keeper was killed before it could remove the entry.
    ExitedProxy,
}

impl RoutingEntry {
    /// The listener's port; only a table for TPROXY has one.
    pub fn tproxy_port(&self) -> Option<u16> {
        match &self.kind {
            EntryKind::Filter(table) => table.tproxy_port(),
            EntryKind::Routing(_) => None,
        }
    }

    /// The mark by which the table recognizes replies; only a table for backends on other hosts has one.
    pub fn reply_mark(&self) -> Option<NonZeroU32> {
        match &self.kind {
            EntryKind::Filter(table) => table.reply_mark(),
            EntryKind::Routing(_) => None,
        }
    }

    /// Whether it is a packet filter table that marks packets for local delivery.
    pub fn sets_mark(&self) -> bool {
        matches!(&self.kind, EntryKind::Filter(table) if table.to_string().contains(" meta mark set "))
    }

    /// Whether it is a rule that selects by firewall mark.
    pub fn selects_by_mark(&self) -> bool {
        matches!(&self.kind, EntryKind::Routing(RuleOrRoute::Rule(rule))
            if matches!(rule.selector, Selector::Mark { .. }))
    }

    /// Removes it. That it does not exist any more is no error.
    pub(super) async fn delete(&self, netlink: &Netlink) -> Result<(), Error> {
        match &self.kind {
            EntryKind::Routing(what) => Ok(what.delete(netlink).await?),
            EntryKind::Filter(table) => table.delete(),
        }
    }
}

impl EntryKind {
    /// The routing table of its owner; `None` for a packet filter table of the administrator.
    fn owner_table(&self) -> Option<u32> {
        match self {
            Self::Routing(what) => Some(what.table()),
            Self::Filter(table) => table.owner(),
        }
    }
}

impl fmt::Display for RoutingEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            EntryKind::Routing(RuleOrRoute::Rule(rule)) => rule.fmt(f),
            EntryKind::Routing(RuleOrRoute::Route(route)) => route.fmt(f),
            EntryKind::Filter(table) => table.fmt(f),
        }
    }
}

impl fmt::Display for EntryOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Administrator => "made by `routes add`",
            Self::RunningProxy => "of a running proxy",
            Self::ExitedProxy => "left behind",
        })
    }
}

/// What is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// What no running proxy needs.
    Idle,
    /// Everything of peername's.
    All,
}

/// What was found of peername's, with its owners.
#[derive(Debug)]
pub(super) struct Inventory {
    pub(super) found: Vec<RoutingEntry>,
    /// Locks of the slots of exited proxies, so that no new proxy takes one meanwhile.
    _locks: Vec<SlotLock>,
}

impl Inventory {
    /// All rules and routes that carry [`PROTOCOL`].
    pub(super) async fn of_routing(netlink: &Netlink) -> SysResult<Self> {
        let found = find_entries(netlink).await?;
        Ok(Self::new(found.into_iter().map(EntryKind::Routing)))
    }

    /// All packet filter tables of peername's.
    ///
    /// # Errors
    ///
    /// [`Error::NftPermission`] where tables can't be listed.
    pub(super) fn of_filters() -> Result<Self, Error> {
        let found = nftables::find()?;
        Ok(Self::new(found.into_iter().map(EntryKind::Filter)))
    }

    /// Removes what this scope has, and returns it.
    pub(super) async fn remove(
        mut self,
        scope: Scope,
        netlink: &Netlink,
    ) -> Result<Vec<RoutingEntry>, Error> {
        self.found
            .retain(|entry| scope == Scope::All || entry.owner != EntryOwner::RunningProxy);
        for entry in &self.found {
            entry.delete(netlink).await?;
        }
        Ok(self.found)
    }

    fn new(found: impl Iterator<Item = EntryKind>) -> Self {
        let mut owners = BTreeMap::new();
        let found = found
            .map(|kind| RoutingEntry {
                owner: match kind.owner_table() {
                    Some(table) => {
                        owners
                            .entry(table)
                            .or_insert_with(|| SlotOwner::of(table))
                            .owner
                    }
                    None => EntryOwner::Administrator,
                },
                kind,
            })
            .collect();
        let locks = owners.into_values().filter_map(|owner| owner.lock);
        Self {
            found,
            _locks: locks.collect(),
        }
    }
}

/// The owner of a routing table, and the lock of its slot if the owner has exited.
struct SlotOwner {
    owner: EntryOwner,
    lock: Option<SlotLock>,
}

impl SlotOwner {
    /// In doubt (a slot of another version, a lock that can't be tried) the owner counts as running: its entries can still be
    /// removed later.
    fn of(table: u32) -> Self {
        let slot = TableSlot::of_table(table);
        if slot == Some(TableSlot::PERSISTENT) {
            return Self {
                owner: EntryOwner::Administrator,
                lock: None,
            };
        }
        let lock = slot.and_then(|slot| slot.try_lock().ok()?);
        let owner = match lock {
            Some(_) => EntryOwner::ExitedProxy,
            None => EntryOwner::RunningProxy,
        };
        Self { owner, lock }
    }
}

/// Removes the rules and routes that an owner that has exited left in `slot`. The caller holds the slot's lock, so it has no
/// other owner.
pub(super) async fn remove_leftovers(netlink: &Netlink, slot: TableSlot) -> SysResult<()> {
    let mut left = find_entries(netlink).await?;
    left.retain(|what| what.table() == slot.table());
    for what in left {
        what.delete(netlink).await?;
    }
    Ok(())
}

/// Whether `slot` has rules or routes.
pub(super) async fn is_occupied(netlink: &Netlink, slot: TableSlot) -> SysResult<bool> {
    let found = find_entries(netlink).await?;
    Ok(found.iter().any(|what| what.table() == slot.table()))
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum RuleOrRoute {
    Rule(Rule),
    Route(LocalRoute),
}

impl RuleOrRoute {
    fn table(&self) -> u32 {
        match self {
            Self::Rule(rule) => rule.table,
            Self::Route(route) => route.table,
        }
    }

    async fn delete(&self, netlink: &Netlink) -> SysResult<()> {
        ignore_missing(match self {
            Self::Rule(rule) => netlink.delete_rule(rule).await,
            Self::Route(route) => netlink.delete_local_route(route).await,
        })
    }
}

/// Finds everything that carries [`PROTOCOL`]: rules before routes, so that removal in this order never leaves a rule
/// without its table.
async fn find_entries(netlink: &Netlink) -> SysResult<Vec<RuleOrRoute>> {
    let rules = netlink
        .rules(PROTOCOL)
        .await?
        .into_iter()
        .map(RuleOrRoute::Rule);
    let routes = netlink.local_routes(PROTOCOL).await?;
    Ok(rules
        .chain(routes.into_iter().map(RuleOrRoute::Route))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new proxy that took the slot would have its own rules removed.
    #[test]
    fn slots_of_exited_proxies_are_locked_while_their_entries_are_at_hand() {
        let slot = TableSlot::running().nth(61).expect("a slot");
        let left = NftTable::untracked_of(slot.table());
        let inventory = Inventory::new([EntryKind::Filter(left)].into_iter());
        assert_eq!(inventory.found[0].owner, EntryOwner::ExitedProxy);
        assert!(slot.try_lock().unwrap().is_none());
        drop(inventory);
        assert!(slot.try_lock().unwrap().is_some());
    }
}
