//! Routing rules, local routes and interface addresses over rtnetlink(7), so that no `ip` binary is
//! needed at run time.
//!
//! Limited to what the reply path needs: policy rules by source address or firewall mark, tables that route every
//! destination locally, and this host's own addresses. Neighbours, ordinary routes and links other than loopback are never
//! changed. Reading needs no capability, changing CAP_NET_ADMIN.

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
pub use egress::Egress;
pub use handle::{Family, LOOPBACK, Netlink, already_exists, is_family_disabled, is_not_found};
pub use monitor::Monitor;
pub use nft_monitor::{NftMonitor, NftProcess, NftRemoval};
pub use route::{LocalNetwork, LocalRoute};
pub use routing_monitor::{RoutingChange, RoutingMonitor};
pub use rule::{Rule, Selector, Traffic};
pub use socket_lookup::{SocketLookup, TcpLookup};
pub use xfrm::has_ipsec_policies;
