//! Finds peername's rules, routes and tables on this host, and removes them.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

use peername_sys::Result as SysResult;
use peername_sys::netlink::{Family, LocalRoute, Netlink, Rule, Selector};

use super::error::Error;
use super::install::ignore_missing;
use super::nftables::{self, NftTable};
use super::table_slot::{PROTOCOL, SlotLock, TableSlot};

/// A rule, a route or a packet filter table of peername's, found on this host. Displayed in the syntax of `ip rule`,
/// `ip route` or `nft`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingEntry {
    /// The owner of the entry.
    pub owner: EntryOwner,
    kind: EntryKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum EntryKind {
    Rule(Rule),
    Route(LocalRoute),
    Filter(NftTable),
}

/// The owner of a rule, route or packet filter table.
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
    /// The listener's port, of a packet filter table for TPROXY.
    pub fn tproxy_port(&self) -> Option<u16> {
        match &self.kind {
            EntryKind::Filter(table) => table.tproxy_port(),
            EntryKind::Rule(_) | EntryKind::Route(_) => None,
        }
    }

    /// The mark by which a packet filter table recognizes replies of backends on other hosts.
    pub fn reply_mark(&self) -> Option<NonZeroU32> {
        match &self.kind {
            EntryKind::Filter(table) => table.reply_mark(),
            EntryKind::Rule(_) | EntryKind::Route(_) => None,
        }
    }

    /// Whether it is a packet filter table that marks packets for local delivery.
    pub fn sets_mark(&self) -> bool {
        matches!(&self.kind, EntryKind::Filter(table) if table.sets_mark())
    }

    /// Whether it is a rule that selects by firewall mark.
    pub fn selects_by_mark(&self) -> bool {
        matches!(&self.kind, EntryKind::Rule(rule) if matches!(rule.selector, Selector::Mark { .. }))
    }

    /// Whether it is an IPv6 rule that selects by firewall mark. Its text has no address, so it equals that of the IPv4 rule.
    pub fn is_mark_of_ipv6(&self) -> bool {
        matches!(&self.kind, EntryKind::Rule(rule)
            if matches!(rule.selector, Selector::Mark { family: Family::V6, .. }))
    }
}

impl EntryKind {
    /// The routing table of its owner; `None` for a packet filter table of the administrator.
    fn owner_table(&self) -> Option<u32> {
        match self {
            Self::Rule(rule) => Some(rule.table),
            Self::Route(route) => Some(route.table),
            Self::Filter(table) => table.owner(),
        }
    }

    /// Removes the entry, if it still exists.
    async fn delete(&self, netlink: &Netlink) -> Result<(), Error> {
        let deleted = match self {
            Self::Rule(rule) => netlink.delete_rule(rule).await,
            Self::Route(route) => netlink.delete_local_route(route).await,
            Self::Filter(table) => return table.delete(),
        };
        Ok(ignore_missing(deleted)?)
    }
}

impl fmt::Display for RoutingEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            EntryKind::Rule(rule) => rule.fmt(f),
            EntryKind::Route(route) => route.fmt(f),
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

/// Which entries are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those that no running proxy needs.
    Idle,
    /// All of peername's.
    All,
}

/// The entries of peername's on this host, with their owners.
#[derive(Debug)]
pub(super) struct Inventory {
    pub(super) found: Vec<RoutingEntry>,
    /// Locks of the slots of exited proxies, so that no new proxy takes one meanwhile.
    _locks: Vec<SlotLock>,
}

impl Inventory {
    /// Finds all rules and routes that carry [`PROTOCOL`].
    pub(super) async fn find_routing(netlink: &Netlink) -> SysResult<Self> {
        Ok(Self::new(find_rules_and_routes(netlink).await?.into_iter()))
    }

    /// Finds all packet filter tables of peername's. Fails as [`nftables::find`] does.
    pub(super) fn find_filters() -> Result<Self, Error> {
        let found = nftables::find()?;
        Ok(Self::new(found.into_iter().map(EntryKind::Filter)))
    }

    /// Removes the entries in this scope, and returns them.
    pub(super) async fn remove(
        mut self,
        scope: Scope,
        netlink: &Netlink,
    ) -> Result<Vec<RoutingEntry>, Error> {
        self.found
            .retain(|entry| scope == Scope::All || entry.owner != EntryOwner::RunningProxy);
        for entry in &self.found {
            entry.kind.delete(netlink).await?;
        }
        Ok(self.found)
    }

    fn new(found: impl Iterator<Item = EntryKind>) -> Self {
        let mut owners = BTreeMap::new();
        let mut owner_of = |kind: &EntryKind| match kind.owner_table() {
            Some(table) => {
                owners
                    .entry(table)
                    .or_insert_with(|| SlotOwner::find(table))
                    .owner
            }
            None => EntryOwner::Administrator,
        };
        let found = found
            .map(|kind| RoutingEntry {
                owner: owner_of(&kind),
                kind,
            })
            .collect();
        Self {
            found,
            _locks: owners
                .into_values()
                .filter_map(|owner| owner.lock)
                .collect(),
        }
    }
}

/// The owner of a routing table, and the lock of its slot if the owner has exited.
struct SlotOwner {
    owner: EntryOwner,
    lock: Option<SlotLock>,
}

impl SlotOwner {
    /// Finds the owner of a table. In doubt (a slot of another version, a lock that can't be tried) the owner counts as
    /// running: its entries can still be removed later.
    fn find(table: u32) -> Self {
        let slot = TableSlot::from_table(table);
        if slot == Some(TableSlot::ADMINISTRATOR) {
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

/// Removes the rules and routes in `slot`. The caller holds the slot's lock, so their owner has exited.
pub(super) async fn remove_leftovers(netlink: &Netlink, slot: TableSlot) -> Result<(), Error> {
    for entry in find_rules_and_routes(netlink).await? {
        if entry.owner_table() == Some(slot.table()) {
            entry.delete(netlink).await?;
        }
    }
    Ok(())
}

/// Whether `slot` has rules or routes.
pub(super) async fn is_occupied(netlink: &Netlink, slot: TableSlot) -> SysResult<bool> {
    let found = find_rules_and_routes(netlink).await?;
    let table = Some(slot.table());
    Ok(found.iter().any(|entry| entry.owner_table() == table))
}

/// Finds all rules and routes that carry [`PROTOCOL`]. The rules come first, so that removal in this order never leaves a rule
/// without its table.
async fn find_rules_and_routes(netlink: &Netlink) -> SysResult<Vec<EntryKind>> {
    let rules = netlink.rules(PROTOCOL).await?;
    let routes = netlink.local_routes(PROTOCOL).await?;
    let rules = rules.into_iter().map(EntryKind::Rule);
    let routes = routes.into_iter().map(EntryKind::Route);
    Ok(rules.chain(routes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new proxy that took the slot would have its own rules removed.
    #[test]
    fn slots_of_exited_proxies_are_locked_as_long_as_the_inventory_lives() {
        let slot = TableSlot::running().nth(61).expect("a slot");
        let table = NftTable::untracked(slot.table());
        let inventory = Inventory::new([EntryKind::Filter(table)].into_iter());
        assert_eq!(inventory.found[0].owner, EntryOwner::ExitedProxy);
        assert!(slot.try_lock().unwrap().is_none());
        drop(inventory);
        assert!(slot.try_lock().unwrap().is_some());
    }
}
