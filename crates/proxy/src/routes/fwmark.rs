//! "What carries our mark is this host's", for packets whose destination no interface has.
//!
//! A packet filter ([`super::nftables`]) sets the mark as the packet comes in; the rule leads it to the table in
//! which every address is local.

use peername_sys::netlink::{self, Family, Netlink, Rule, Selector};

use super::error::Error;
use super::install::InstalledRoutes;
use super::table_slot::{PROTOCOL, TableSlot};

/// The mark on packets that are to be taken for this host's own.
///
/// It reads as the priority of the rules. No bit of it is one of those that Tailscale (0xff0000) and Kubernetes
/// (0x4000, 0x8000) use for theirs, so that none of their rules takes it for one.
pub const LOCAL_FWMARK: u32 = 0x0000_2110;

/// Makes the rules and routes for marked packets; what is there already is left as it is.
pub(super) async fn install_rules(netlink: &Netlink, slot: TableSlot) -> Result<(), Error> {
    let mut made = InstalledRoutes::default();
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
        match made.add_missing(netlink, rule).await {
            Err(error) if family == Family::V6 && netlink::is_family_disabled(&error) => {}
            outcome => outcome?,
        }
    }
    Ok(())
}
