//! Routing rules, local routes, interface addresses, sockets and notifications over netlink(7), so that no `ip`, `ss` or `nft`
//! binary is needed at run time.
//!
//! Three things are ever changed: policy rules by source address or firewall mark, local routes for every destination, and the
//! loopback interface. A change needs CAP_NET_ADMIN. A read needs no capability, except by [`NftMonitor`] and
//! [`has_ipsec_policies`].

mod address;
mod any_ip;
mod egress;
mod handle;
mod link;
mod monitor;
mod nft_monitor;
pub(crate) mod raw;
mod route;
mod routing_monitor;
mod rule;
pub mod sock_diag;
mod socket_lookup;
mod xfrm;

pub use address::{AddressChange, AddressMonitor, InterfaceAddress};
pub use any_ip::make_every_address_local;
pub use egress::{Egress, is_delivered_locally};
pub use handle::{Family, LOOPBACK, Netlink, already_exists, is_family_disabled, is_not_found};
pub use monitor::Monitor;
pub use nft_monitor::{NftMonitor, NftProcess, NftRemoval};
pub use route::{LocalNetwork, LocalRoute};
pub use routing_monitor::{RoutingChange, RoutingMonitor};
pub use rule::{Rule, Selector, Traffic};
pub use socket_lookup::{SocketLookup, TcpLookup};
pub use xfrm::has_ipsec_policies;
