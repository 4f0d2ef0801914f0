//! Installs the rules and routes of one slot, and removes exactly these again.

use std::net::SocketAddr;

use peername_sys::Result as SysResult;
use peername_sys::netlink::{self, Family, LocalRoute, Netlink, Rule, Selector, Traffic};

use super::backend_rule::BackendRule;
use super::error::Error;
use super::table_slot::{PROTOCOL, TableSlot};

/// The rules and routes that were installed, so that exactly these are removed again.
#[derive(Debug, Default)]
pub(super) struct InstalledRoutes {
    rules: Vec<Rule>,
    routes: Vec<LocalRoute>,
    /// Backends of a family that this host does not have.
    pub(super) skipped: Vec<SocketAddr>,
}

impl InstalledRoutes {
    /// Installs the rules and their routes. Where they exist in part, `conflict` decides; with [`OnConflict::Fail`], the error
    /// is [`Error::Syscall`] with EEXIST. An error undoes what was installed before.
    pub(super) async fn install(
        netlink: &Netlink,
        slot: TableSlot,
        rules: &[BackendRule],
        conflict: OnConflict,
    ) -> Result<Self, Error> {
        let mut installed = Self::default();
        for rule in rules {
            match installed.add(netlink, rule.in_slot(slot), conflict).await {
                Ok(()) => {}
                Err(error) if rule.target.is_ipv6() && netlink::is_family_disabled(&error) => {
                    // A backend may have several rules.
                    if !installed.skipped.contains(&rule.target) {
                        installed.skipped.push(rule.target);
                    }
                }
                Err(error) => {
                    // The installation's error says more than one of the removal would.
                    let _ = installed.undo(netlink).await;
                    return Err(error.into());
                }
            }
        }
        let is_skipped = |rule: &BackendRule| installed.skipped.contains(&rule.target);
        if !rules.is_empty() && rules.iter().all(is_skipped) {
            return Err(Error::NoIpv6);
        }
        Ok(installed)
    }

    /// Installs a rule after its route, so that no packet matches a rule with an empty table.
    pub(super) async fn add(
        &mut self,
        netlink: &Netlink,
        rule: Rule,
        conflict: OnConflict,
    ) -> SysResult<()> {
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

    /// The rules of backends: those that select by source address.
    pub(super) fn backend_rules(&self) -> Vec<Rule> {
        let mut rules = self.rules.clone();
        rules.retain(|rule| matches!(rule.selector, Selector::From { .. }));
        rules
    }

    /// Adds rules and routes that were removed meanwhile, and returns them in the syntax of ip(8).
    pub(super) async fn restore(&self, netlink: &Netlink) -> SysResult<Vec<String>> {
        let (rules, routes) = (
            netlink.rules(PROTOCOL).await?,
            netlink.local_routes(PROTOCOL).await?,
        );
        let mut restored = Vec::new();
        for route in self.routes.iter().filter(|&route| !routes.contains(route)) {
            if added_unless_disabled(netlink.add_local_route(route).await, route.family)? {
                restored.push(route.to_string());
            }
        }
        for rule in self.rules.iter().filter(|&rule| !rules.contains(rule)) {
            if added_unless_disabled(netlink.add_rule(rule).await, rule.family())? {
                restored.push(rule.to_string());
            }
        }
        Ok(restored)
    }

    /// Removes everything again. Continues after an error and returns the first.
    pub(super) async fn undo(mut self, netlink: &Netlink) -> SysResult<()> {
        let mut outcome = Ok(());
        // Narrower rules are deleted first. To delete a rule for all packets of a source, the kernel deletes its first rule for
        // that source, which may be a narrower one: restoring a rule changes the order in the kernel.
        self.rules.sort_by_key(selects_any_traffic);
        // Rules before routes, so that no rule points to an empty table.
        for rule in &self.rules {
            outcome = outcome.and(ignore_missing(netlink.delete_rule(rule).await));
        }
        for route in &self.routes {
            outcome = outcome.and(ignore_missing(netlink.delete_local_route(route).await));
        }
        outcome
    }
}

/// Whether the rule selects all packets of a source.
fn selects_any_traffic(rule: &Rule) -> bool {
    matches!(
        rule.selector,
        Selector::From {
            traffic: Traffic::Any,
            ..
        }
    )
}

/// The policy for a rule or route that exists already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnConflict {
    Keep,
    /// The slot must be empty.
    Fail,
}

impl OnConflict {
    /// Whether the call added a rule or route.
    fn added(self, outcome: SysResult<()>) -> SysResult<bool> {
        match outcome {
            Ok(()) => Ok(true),
            Err(error) if self == Self::Keep && netlink::already_exists(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether the call added a rule or route. IPv6 may have been disabled meanwhile; then there are no packets to route either.
fn added_unless_disabled(outcome: SysResult<()>, family: Family) -> SysResult<bool> {
    match outcome {
        Err(error) if family == Family::V6 && netlink::is_family_disabled(&error) => Ok(false),
        outcome => OnConflict::Keep.added(outcome),
    }
}

pub(super) fn ignore_missing(outcome: SysResult<()>) -> SysResult<()> {
    match outcome {
        Err(error) if netlink::is_not_found(&error) => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use peername_sys::process::namespace::NetworkNamespace;

    use super::*;
    use crate::backend::Backend;
    use crate::routes::backend_rule::rules_for;

    /// Removes a rule for all ports and a rule for one port. The former was restored, so it is last in the kernel's order.
    async fn remove_restored_rules() {
        let netlink = Netlink::open().unwrap();
        netlink.set_loopback_up().await.unwrap();
        let targets = ["127.0.0.1:0", "127.0.0.1:80"].map(|text| text.parse::<Backend>().unwrap());
        let rules = rules_for(&netlink, &targets, false).await.unwrap();
        let slot = TableSlot::ADMINISTRATOR;
        let installed = InstalledRoutes::install(&netlink, slot, &rules, OnConflict::Fail)
            .await
            .unwrap();
        let [any, of_port] = installed.rules.as_slice() else {
            panic!("{installed:?}");
        };
        netlink.delete_rule(any).await.unwrap();
        let left = netlink.rules(PROTOCOL).await.unwrap();
        assert_eq!(left.as_slice(), std::slice::from_ref(of_port));
        installed.restore(&netlink).await.unwrap();
        installed.undo(&netlink).await.unwrap();
        assert_eq!(netlink.rules(PROTOCOL).await.unwrap(), []);
    }

    /// Needs root.
    #[test]
    fn rules_of_one_source_are_removed_in_whatever_order_they_are() {
        let run = || {
            let _network = NetworkNamespace::unshare().expect("root");
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(remove_restored_rules());
        };
        // The namespace belongs to the thread.
        thread::spawn(run).join().unwrap();
    }
}
