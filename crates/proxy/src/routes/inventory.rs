//! Finding peername's rules and routes again, and taking them away.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;

use peername_sys::Result as SysResult;
use peername_sys::netlink::{LocalRoute, Netlink, Rule, Selector};

use super::error::Error;
use super::install::gone;
use super::nftables::Found;
use super::table_slot::{Claim, PROTOCOL, Slot};

/// A rule or route of peername's, found on this host. Displayed as `ip rule` and `ip route` say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ours {
    /// Who made it.
    pub owner: Owner,
    what: Thing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Thing {
    Routing(What),
    Filter(Found),
}

/// Who made a rule or route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The administrator, with `peername routes add`.
    Administrator,
    /// A proxy that runs.
    Running,
    /// A proxy that does not run any more, and was not allowed to clean up.
    Gone,
}

impl Ours {
    /// Of a table for TPROXY, the port that it brings everything to.
    pub fn tproxy_port(&self) -> Option<u16> {
        match &self.what {
            Thing::Filter(table) => table.tproxy_port(),
            Thing::Routing(_) => None,
        }
    }

    /// Of a table for the replies of backends on other hosts, the mark that it knows them by.
    pub fn reply_mark(&self) -> Option<NonZeroU32> {
        match &self.what {
            Thing::Filter(table) => table.reply_mark(),
            Thing::Routing(_) => None,
        }
    }

    /// Whether it is a rule that looks at a firewall mark.
    pub fn selects_by_mark(&self) -> bool {
        matches!(&self.what, Thing::Routing(What::Rule(rule))
            if matches!(rule.selector, Selector::Mark { .. }))
    }

    /// A table of the packet filter: only the administrator makes such.
    pub(super) fn table(found: Found) -> Self {
        Self {
            owner: Owner::Administrator,
            what: Thing::Filter(found),
        }
    }

    /// Deletes it; that it is gone already is no error.
    pub(super) async fn delete(&self, netlink: &Netlink) -> Result<(), Error> {
        match &self.what {
            Thing::Routing(what) => Ok(what.delete(netlink).await?),
            Thing::Filter(table) => table.delete(),
        }
    }
}

impl fmt::Display for Ours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            Thing::Routing(What::Rule(rule)) => rule.fmt(f),
            Thing::Routing(What::Route(route)) => route.fmt(f),
            Thing::Filter(table) => table.fmt(f),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Administrator => "made by `routes add`",
            Self::Running => "of a running proxy",
            Self::Gone => "left behind",
        })
    }
}

/// Everything that carries our number, and who made it.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) found: Vec<Ours>,
    /// The slots of those that are gone: nobody can move in while this is held.
    _claims: Vec<Claim>,
}

impl Survey {
    pub(super) async fn take(netlink: &Netlink) -> SysResult<Self> {
        let marked = marked(netlink).await?;
        let tables: BTreeSet<u32> = marked.iter().map(What::table).collect();
        let mut owners = BTreeMap::new();
        let mut claims = Vec::new();
        for table in tables {
            let (owner, claim) = owner(table);
            owners.insert(table, owner);
            claims.extend(claim);
        }
        let found = marked
            .into_iter()
            .map(|what| Ours {
                owner: owners[&what.table()],
                what: Thing::Routing(what),
            })
            .collect();
        Ok(Self {
            found,
            _claims: claims,
        })
    }
}

/// When in doubt (the slot of another version, a claim that can't be tried) somebody runs: what is
/// not removed can be removed later.
fn owner(table: u32) -> (Owner, Option<Claim>) {
    let Some(slot) = Slot::of_table(table) else {
        return (Owner::Running, None);
    };
    if slot == Slot::PERSISTENT {
        return (Owner::Administrator, None);
    }
    match slot.claim() {
        Ok(Some(claim)) => (Owner::Gone, Some(claim)),
        Ok(None) | Err(_) => (Owner::Running, None),
    }
}

/// Removes what a dead owner left in `slot`. The caller holds the claim, so nobody else is in it.
pub(super) async fn sweep(netlink: &Netlink, slot: Slot) -> SysResult<()> {
    let mut left = marked(netlink).await?;
    left.retain(|what| what.table() == slot.table());
    for what in left {
        what.delete(netlink).await?;
    }
    Ok(())
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Rule(Rule),
    Route(LocalRoute),
}

impl What {
    fn table(&self) -> u32 {
        match self {
            Self::Rule(rule) => rule.table,
            Self::Route(route) => route.table,
        }
    }

    async fn delete(&self, netlink: &Netlink) -> SysResult<()> {
        gone(match self {
            Self::Rule(rule) => netlink.delete_rule(rule).await,
            Self::Route(route) => netlink.delete_local_route(route).await,
        })
    }
}

/// Everything that carries our number: rules before routes, so that deleting in this order never
/// leaves a rule without its table.
async fn marked(netlink: &Netlink) -> SysResult<Vec<What>> {
    let rules = netlink.rules(PROTOCOL).await?.into_iter().map(What::Rule);
    let routes = netlink.local_routes(PROTOCOL).await?;
    Ok(rules.chain(routes.into_iter().map(What::Route)).collect())
}
