//! Routing by firewall mark: packets with peername's mark are delivered locally, whatever their destination.
//!
//! A packet filter ([`super::nftables`]) sets the mark on an incoming packet; the rule selects the table in which every address
//! is local.

use peername_sys::netlink::{self, Family, Netlink, Rule, Selector};

use super::error::Error;
use super::install::{InstalledRoutes, OnConflict};
use super::table_slot::{PROTOCOL, TableSlot};

/// The mark on packets that are to be delivered locally.
///
/// Its hexadecimal digits are those of the rules' priority, 2110. It has none of the bits that Tailscale (0xff0000) and
/// Kubernetes (0x4000, 0x8000) use, so none of their rules matches it.
pub const LOCAL_FWMARK: u32 = 0x0000_2110;

/// Installs the rules and routes for marked packets, unless they exist. On a host without IPv6, installs only those of IPv4.
pub(super) async fn install_rules(
    netlink: &Netlink,
    slot: TableSlot,
    installed: &mut InstalledRoutes,
) -> Result<(), Error> {
    for family in [Family::V4, Family::V6] {
        let rule = Rule {
            selector: Selector::Mark {
                family,
                mark: LOCAL_FWMARK,
            },
            table: slot.table(),
            priority: slot.priority(),
            protocol: PROTOCOL,
        };
        match installed.add(netlink, rule, OnConflict::Keep).await {
            Err(error) if family == Family::V6 && netlink::is_family_disabled(&error) => {}
            outcome => outcome?,
        }
    }
    Ok(())
}
