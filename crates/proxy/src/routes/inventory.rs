//! Finding peername's rules and routes again, and taking them away.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;

use peername_sys::Result as SysResult;
use peername_sys::netlink::{LocalRoute, Netlink, Rule, Selector};

use super::error::Error;
use super::install::ignore_missing;
use super::nftables::NftTable;
use super::table_slot::{PROTOCOL, SlotLock, TableSlot};

/// A rule or route of peername's, found on this host. Displayed as `ip rule` and `ip route` say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingEntry {
    /// Who made it.
    pub owner: EntryOwner,
    kind: EntryKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum EntryKind {
    Routing(RuleOrRoute),
    Filter(NftTable),
}

/// Who made a rule or route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryOwner {
    /// The administrator, with `peername routes add`.
    Administrator,
    /// A proxy that runs.
    RunningProxy,
    /// A proxy that does not run any more, and was not allowed to clean up.
    ExitedProxy,
}

impl RoutingEntry {
    /// Of a table for TPROXY, the port that it brings everything to.
    pub fn tproxy_port(&self) -> Option<u16> {
        match &self.kind {
            EntryKind::Filter(table) => table.tproxy_port(),
            EntryKind::Routing(_) => None,
        }
    }

    /// Of a table for the replies of backends on other hosts, the mark that it knows them by.
    pub fn reply_mark(&self) -> Option<NonZeroU32> {
        match &self.kind {
            EntryKind::Filter(table) => table.reply_mark(),
            EntryKind::Routing(_) => None,
        }
    }

    /// Whether it is a rule that looks at a firewall mark.
    pub fn selects_by_mark(&self) -> bool {
        matches!(&self.kind, EntryKind::Routing(RuleOrRoute::Rule(rule))
            if matches!(rule.selector, Selector::Mark { .. }))
    }

    /// A table of the packet filter: only the administrator makes such.
    pub(super) fn from_table(found: NftTable) -> Self {
        Self {
            owner: EntryOwner::Administrator,
            kind: EntryKind::Filter(found),
        }
    }

    /// Deletes it; that it is gone already is no error.
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

/// Everything that carries our number, and who made it.
#[derive(Debug)]
pub(super) struct Inventory {
    pub(super) found: Vec<RoutingEntry>,
    /// The slots of those that are gone: nobody can move in while this is held.
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

/// When in doubt (the slot of another version, a claim that can't be tried) somebody runs: what is
/// not removed can be removed later.
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

/// Removes what a dead owner left in `slot`. The caller holds the claim, so nobody else is in it.
pub(super) async fn remove_leftovers(netlink: &Netlink, slot: TableSlot) -> SysResult<()> {
    let mut left = find_entries(netlink).await?;
    left.retain(|what| what.table() == slot.table());
    for what in left {
        what.delete(netlink).await?;
    }
    Ok(())
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

/// Everything that carries our number: rules before routes, so that deleting in this order never
/// leaves a rule without its table.
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
