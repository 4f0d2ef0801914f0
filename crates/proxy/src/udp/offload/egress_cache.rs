//! Which way replies to balancers leave this host: the kernel's program must be told, and word kept up.

use std::collections::HashMap;
use std::net::IpAddr;

use peername_sys::netlink::Egress;

/// The egress_cache from an address of this host to a balancer that are in use.
#[derive(Debug, Default)]
pub(crate) struct EgressCache(HashMap<(IpAddr, IpAddr), Egress>);

impl EgressCache {
    /// The way from `local` to `balancer`; `None` where there is none, or where there are too many already.
    pub(crate) fn find(&mut self, local: IpAddr, balancer: IpAddr) -> Option<Egress> {
        let key = (local.to_canonical(), balancer.to_canonical());
        if let Some(known) = self.0.get(&key) {
            return Some(*known);
        }
        if self.0.len() >= MAX_EGRESSES {
            return None;
        }
        let way = Egress::lookup(key.0, key.1).ok()?;
        self.0.insert(key, way);
        Some(way)
    }

    /// Looks again, and says whether any is otherwise by now. Those are forgotten.
    pub(crate) fn refresh(&mut self) -> bool {
        let before = self.0.len();
        self.0
            .retain(|(local, balancer), way| Egress::lookup(*local, *balancer).ok() == Some(*way));
        self.0.len() < before
    }
}

/// Each is looked for again every second, which takes some 20 us.
const MAX_EGRESSES: usize = 256;
