//! The egress of replies: the device, and the largest packet it sends. Offload depends on both, so changes are
//! detected.

use std::collections::HashMap;
use std::net::IpAddr;

use peername_sys::netlink::{Egress, LOOPBACK};
use peername_sys::udp::PktInfo;

/// The egress from an address of this host to a balancer, for all pairs in use.
#[derive(Debug, Default)]
pub(crate) struct EgressCache(HashMap<(IpAddr, IpAddr), Egress>);

impl EgressCache {
    /// The largest IP packet that can go from `local` back to `balancer`. `None` where replies leave by another device
    /// than requests come in by, where there is no route, and where the cache is full.
    pub(crate) fn max_packet(&mut self, local: &PktInfo, balancer: IpAddr) -> Option<u16> {
        if local.interface == LOOPBACK {
            return Some(u16::MAX);
        }
        let egress = self.find(local.ip, balancer)?;
        let max_packet = u16::try_from(egress.mtu).unwrap_or(u16::MAX);
        (egress.interface == local.interface).then_some(max_packet)
    }

    /// Looks up all again and forgets those that have changed. Returns whether there were any.
    pub(crate) fn refresh(&mut self) -> bool {
        let before = self.0.len();
        self.0.retain(|(local, balancer), egress| {
            Egress::lookup(*local, *balancer).ok() == Some(*egress)
        });
        self.0.len() < before
    }

    fn find(&mut self, local: IpAddr, balancer: IpAddr) -> Option<Egress> {
        let key = (local.to_canonical(), balancer.to_canonical());
        if let Some(known) = self.0.get(&key) {
            return Some(*known);
        }
        if self.0.len() >= MAX_EGRESSES {
            return None;
        }
        let egress = Egress::lookup(key.0, key.1).ok()?;
        self.0.insert(key, egress);
        Some(egress)
    }
}

/// Each is looked up again every second, which takes some 20 us.
const MAX_EGRESSES: usize = 256;
