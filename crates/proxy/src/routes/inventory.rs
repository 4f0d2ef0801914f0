//! Finds peername's rules, routes and tables on this host, and removes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;

use peername_sys::Result as SysResult;
use peername_sys::netlink::{LocalRoute, Netlink, Rule, Selector};

use super::error::Error;
use super::install::ignore_missing;
use super::nftables::NftTable;
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

    /// The entry of a packet filter table.
    pub(super) fn from_table(found: NftTable) -> Self {
        Self {
            owner: found
                .owner()
                .map_or(EntryOwner::Administrator, |table| owner(table).0),
            kind: EntryKind::Filter(found),
        }
    }

    /// Removes it. That it does not exist any more is no error.
    pub(super) async fn delete(&self, netlink: &Netlink) -> Result<(), Error> {
        match &self.kind {
            EntryKind::Routing(what) => Ok(what.delete(netlink).await?),
            EntryKind::Filter(table) => table.delete(),
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

/// All rules and routes that carry [`PROTOCOL`], with their owners.
#[derive(Debug)]
pub(super) struct Inventory {
    pub(super) found: Vec<RoutingEntry>,
    /// Locks of the slots of exited proxies, so that no new proxy takes one meanwhile.
    _locks: Vec<SlotLock>,
}

impl Inventory {
    pub(super) async fn read(netlink: &Netlink) -> SysResult<Self> {
        let marked = find_entries(netlink).await?;
        let tables: BTreeSet<u32> = marked.iter().map(RuleOrRoute::table).collect();
        let mut owners = BTreeMap::new();
        let mut locks = Vec::new();
        for table in tables {
            let (owner, lock) = owner(table);
            owners.insert(table, owner);
            locks.extend(lock);
        }
        let found = marked
            .into_iter()
            .map(|what| RoutingEntry {
                owner: owners[&what.table()],
                kind: EntryKind::Routing(what),
            })
            .collect();
        Ok(Self {
            found,
            _locks: locks,
        })
    }
}

/// Returns a table's owner, and the lock of its slot if the owner has exited. In doubt (a slot of another version, a
/// lock that can't be tried) the owner counts as running: its entries can still be removed later.
fn owner(table: u32) -> (EntryOwner, Option<SlotLock>) {
    let Some(slot) = TableSlot::of_table(table) else {
        return (EntryOwner::RunningProxy, None);
    };
    if slot == TableSlot::PERSISTENT {
        return (EntryOwner::Administrator, None);
    }
    match slot.try_lock() {
        Ok(Some(lock)) => (EntryOwner::ExitedProxy, Some(lock)),
        Ok(None) | Err(_) => (EntryOwner::RunningProxy, None),
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
