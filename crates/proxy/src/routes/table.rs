//! Making the rules and routes of one slot, finding them again, and taking them away.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;

use peername_sys::Result as SysResult;
use peername_sys::netlink::{self, LocalRoute, Netlink, Rule, Selector};

use super::filter::Found;
use super::plan::Plan;
use super::slot::Claim;
use super::{Error, PROTOCOL, Slot};

/// What was made, so that exactly this is taken away again.
#[derive(Debug, Default)]
pub(super) struct Made {
    rules: Vec<Rule>,
    routes: Vec<LocalRoute>,
    /// Backends of a family that this host does not have.
    pub(super) skipped: Vec<SocketAddr>,
}

impl Made {
    /// Makes what `plans` need and is not there yet.
    pub(super) async fn keeping(
        netlink: &Netlink,
        slot: Slot,
        plans: &[Plan],
    ) -> Result<Self, Error> {
        Self::make(netlink, slot, plans, OnConflict::Keep).await
    }

    /// Makes what `plans` need in a slot that must be empty: [`Error::Failed`] with EEXIST when it
    /// is not, and then nothing is left of the attempt.
    pub(super) async fn fresh(
        netlink: &Netlink,
        slot: Slot,
        plans: &[Plan],
    ) -> Result<Self, Error> {
        Self::make(netlink, slot, plans, OnConflict::Fail).await
    }

    /// Makes this rule with its route, where they are not there yet.
    pub(super) async fn keep(&mut self, netlink: &Netlink, rule: Rule) -> SysResult<()> {
        self.add(netlink, rule, OnConflict::Keep).await
    }

    /// Takes everything away again. Goes on after an error and returns the first.
    pub(super) async fn undo(self, netlink: &Netlink) -> SysResult<()> {
        let mut outcome = Ok(());
        // The rules first: a rule that points to an empty table is harmless, but brief is better.
        for rule in &self.rules {
            outcome = outcome.and(gone(netlink.delete_rule(rule).await));
        }
        for route in &self.routes {
            outcome = outcome.and(gone(netlink.delete_local_route(route).await));
        }
        outcome
    }

    async fn make(
        netlink: &Netlink,
        slot: Slot,
        plans: &[Plan],
        conflict: OnConflict,
    ) -> Result<Self, Error> {
        let mut made = Self::default();
        for plan in plans {
            match made.add(netlink, plan.rule(slot), conflict).await {
                Ok(()) => {}
                Err(error) if plan.target.is_ipv6() && netlink::is_family_off(&error) => {
                    made.skipped.push(plan.target);
                }
                Err(error) => {
                    // The first error says more than one of cleaning up would.
                    let _ = made.undo(netlink).await;
                    return Err(error.into());
                }
            }
        }
        if !plans.is_empty() && made.skipped.len() == plans.len() {
            return Err(Error::FamilyOff);
        }
        Ok(made)
    }

    /// The route comes first, so that no packet meets a rule with an empty table.
    async fn add(&mut self, netlink: &Netlink, rule: Rule, conflict: OnConflict) -> SysResult<()> {
        let route = LocalRoute {
            family: rule.family(),
            table: rule.table,
            protocol: PROTOCOL,
        };
        if !self.routes.contains(&route) && conflict.added(netlink.add_local_route(&route).await)? {
            self.routes.push(route);
        }
        if !self.rules.contains(&rule) && conflict.added(netlink.add_rule(&rule).await)? {
            self.rules.push(rule);
        }
        Ok(())
    }
}

/// What to do when a rule or route is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnConflict {
    Keep,
    Fail,
}

impl OnConflict {
    /// Whether something was added.
    fn added(self, outcome: SysResult<()>) -> SysResult<bool> {
        match outcome {
            Ok(()) => Ok(true),
            Err(error) if self == Self::Keep && netlink::is_there_already(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

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

fn gone(outcome: SysResult<()>) -> SysResult<()> {
    match outcome {
        Err(error) if netlink::is_gone(&error) => Ok(()),
        outcome => outcome,
    }
}
