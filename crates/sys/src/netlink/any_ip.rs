//! AnyIP: a network namespace in which every address is local.

use std::net::IpAddr;

use super::handle::{Family, Netlink, is_family_disabled};
use super::route::LocalRoute;
use crate::{NameCall, Result};

/// Makes every address local in the calling thread's network namespace, which has to be new: sets loopback up, and adds
/// `local 0.0.0.0/0 dev lo` and `local ::/0 dev lo`. A connection to any address then arrives at a listener of the namespace,
/// and the accepted socket's own address is the original destination. No packet leaves the namespace. Returns whether there is
/// IPv6.
///
/// `extra` addresses are added to the loopback interface, such as 192.0.0.8 (RFC 7600): where the host has only
/// loopback addresses, getaddrinfo(3) with AI_ADDRCONFIG returns none if a single family is requested.
///
/// Must not be called inside a tokio runtime: it starts one, without threads, for the netlink socket.
///
/// # Errors
///
/// EPERM without CAP_NET_ADMIN over the namespace.
pub fn make_every_address_local(extra: &[IpAddr]) -> Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .call("epoll_create1(2)")?;
    runtime.block_on(async {
        let netlink = Netlink::open()?;
        netlink.set_loopback_up().await?;
        netlink
            .add_local_route(&local_default_route(Family::V4))
            .await?;
        let added = netlink
            .add_local_route(&local_default_route(Family::V6))
            .await;
        let has_v6 = match added {
            Err(error) if is_family_disabled(&error) => false,
            added => added.map(|()| true)?,
        };
        for &address in extra.iter().filter(|ip| ip.is_ipv4() || has_v6) {
            netlink.add_loopback_address(address).await?;
        }
        Ok(has_v6)
    })
}

fn local_default_route(family: Family) -> LocalRoute {
    LocalRoute {
        family,
        table: LOCAL_TABLE,
        protocol: BOOT,
    }
}

/// RT_TABLE_LOCAL, which the kernel's first rule looks up.
const LOCAL_TABLE: u32 = 255;
/// RTPROT_BOOT: a route that was added when the network came up.
const BOOT: u8 = 3;
