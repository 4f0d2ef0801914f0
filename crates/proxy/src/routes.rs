//! Policy routing: the rules and routes that bring a backend's replies back to the proxy.
//!
//! The backend replies to the client's own address, so by the ordinary routing tables its packets leave this host. A rule
//! on the *source* of the packet, which is the backend's address, sends them to a table in which every address is local.
//! See `docs/routes.md`.
//!
//! Everything installed here carries [`PROTOCOL`] and belongs to a slot: a table number and a rule priority of one owner.
//! The administrator's rules (`peername routes add`) have a slot of their own and stay; a running proxy locks a free one
//! and releases it ([`Keeper`]). So two owners that need the same rule have a copy each, and removing one leaves the other.

mod backend_rule;
mod error;
mod fwmark;
mod install;
mod inventory;
mod keeper;
mod kept_routes;
mod location;
mod nftables;
mod table_slot;
mod watch;

use std::net::SocketAddr;
use std::num::NonZeroU32;

use peername_observe::shell::quote;
use peername_sys::Result as SysResult;
use peername_sys::Transport;
use peername_sys::netlink::Netlink;

pub use crate::backend::Backend;
pub use backend_rule::rules_apply_to;
pub use error::{Error, permission_advice};
pub use fwmark::LOCAL_FWMARK;
pub use inventory::{EntryOwner, RoutingEntry, Scope};
pub use keeper::{Keeper, KeeperReports, run_keeper};
pub use location::{BackendLocation, locate_backend};
pub use nftables::FilterRules;
pub use table_slot::PROTOCOL;

pub(crate) use backend_rule::has_rule;

use backend_rule::rules_for;
use install::{InstalledRoutes, OnConflict};
use inventory::Inventory;
use table_slot::TableSlot;

/// Installs the administrator's rules and routes for these backends, unless they exist. They stay until [`remove`] or the next
/// boot.
///
/// Returns the backends that were skipped because this host has no IPv6. Needs CAP_NET_ADMIN.
///
/// # Errors
///
/// [`Error`]: a backend is on another host, all of them are skipped, or the kernel refuses.
pub async fn add<B: Into<Backend> + Copy>(targets: &[B]) -> Result<Vec<SocketAddr>, Error> {
    let netlink = Netlink::open()?;
    let backends: Vec<Backend> = targets.iter().map(|&target| target.into()).collect();
    let rules = rules_for(&netlink, &backends, false).await?;
    let slot = TableSlot::ADMINISTRATOR;
    let installed = InstalledRoutes::install(&netlink, slot, &rules, OnConflict::Keep).await?;
    Ok(installed.skipped)
}

/// Installs the table that keeps connections to the backends of the administrator's rules untracked, so that no NAT rule
/// applies to them. Needs CAP_NET_ADMIN and nft(8).
pub async fn add_untracked() -> Result<(), Error> {
    let owner = TableSlot::ADMINISTRATOR.table();
    let mut rules = Netlink::open()?.rules(PROTOCOL).await?;
    rules.retain(|rule| rule.table == owner);
    match FilterRules::untracked(rules, owner) {
        Some(table) => table.install(),
        None => Ok(()),
    }
}

/// Returns those of the backends that are on this host. [`add`] fails for the others.
pub async fn local_backends(backends: Vec<Backend>) -> Result<Vec<Backend>, Error> {
    let netlink = Netlink::open()?;
    let mut local = Vec::new();
    for backend in backends {
        if locate_backend(&netlink, backend.address).await? != BackendLocation::OtherHost {
            local.push(backend);
        }
    }
    Ok(local)
}

/// Installs a packet filter table of the administrator's, with the rules and routes that it needs. Replaces a table for the
/// same listener or mark. Needs CAP_NET_ADMIN and nft(8).
pub async fn add_filter(rules: &FilterRules) -> Result<(), Error> {
    if rules.needs_fwmark() {
        let mut installed = InstalledRoutes::default();
        let slot = TableSlot::ADMINISTRATOR;
        fwmark::install_rules(&Netlink::open()?, slot, &mut installed).await?;
    }
    rules.install()
}

/// Lists peername's packet filter tables on this host.
///
/// # Errors
///
/// [`Error::NftPermission`] where tables can't be listed.
pub fn list_filters() -> Result<Vec<RoutingEntry>, Error> {
    Ok(Inventory::find_filters()?.found)
}

/// Lists the rules and routes of this host that carry [`PROTOCOL`], with their owners. Needs no capability.
pub async fn list() -> SysResult<Vec<RoutingEntry>> {
    Ok(Inventory::find_routing(&Netlink::open()?).await?.found)
}

/// Removes the administrator's rules and routes, and those left behind by a [`Keeper`] that was killed, and returns them. With
/// [`Scope::All`] also those of running proxies, whose clients then hang. Needs CAP_NET_ADMIN.
pub async fn remove(scope: Scope) -> Result<Vec<RoutingEntry>, Error> {
    let netlink = Netlink::open()?;
    let inventory = Inventory::find_routing(&netlink).await?;
    inventory.remove(scope, &netlink).await
}

/// Removes peername's packet filter tables and returns them. With [`Scope::Idle`], those of running proxies stay. Fails as
/// [`list_filters`] does.
pub async fn remove_filters(scope: Scope) -> Result<Vec<RoutingEntry>, Error> {
    let netlink = Netlink::open()?;
    Inventory::find_filters()?.remove(scope, &netlink).await
}

/// What to run to add the rules that replies of `target` need, for error texts. For a backend on loopback it also names the
/// command that serves all of them: a host with several backends needs no command for each then, nor for a later one.
pub fn add_advice(target: impl Into<Backend>, mark: Option<NonZeroU32>) -> String {
    let target = target.into();
    let command = add_command(target, mark);
    if mark.is_none() && target.address.ip().to_canonical().is_loopback() {
        format!("{command} as root (without --target: for all backends on loopback)")
    } else {
        format!("{command} as root")
    }
}

/// The command that installs the rules for `target`, with `--mark` if there is a mark, for error texts.
pub fn add_command(target: impl Into<Backend>, mark: Option<NonZeroU32>) -> String {
    let Backend { address, transport } = target.into();
    let mark = mark.map_or_else(String::new, |mark| format!(" --mark {mark}"));
    let protocol = match transport {
        Transport::Tcp => "",
        Transport::Udp => " --protocol udp",
    };
    let mut target = address.to_string();
    // Port 0 stands for all ports, for which the option has `same`.
    if address.port() == 0 {
        target.pop();
        target.push_str("same");
    }
    format!(
        "`peername routes add{mark} --target {}{protocol}`",
        quote(&target)
    )
}
