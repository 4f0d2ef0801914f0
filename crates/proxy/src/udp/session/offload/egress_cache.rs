//! The egress of replies: the device, and the largest packet that it sends. Offload depends on both, so changes are detected.

use std::collections::HashMap;
use std::mem;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use peername_sys::netlink::{Egress, LOOPBACK};
use peername_sys::udp::PktInfo;

/// The egress for each pair of an address of this host and a balancer.
#[derive(Debug, Default)]
pub(crate) struct EgressCache {
    known: HashMap<(IpAddr, IpAddr), Egress>,
    /// When the full cache was last cleared.
    cleared_at: Option<Instant>,
    /// Whether the cache was cleared since the last refresh.
    is_cleared: bool,
}

impl EgressCache {
    /// The largest IP packet that can go from `local` back to `balancer`. `None` where replies leave by another device
    /// than requests come in by, where there is no route, and where the cache is full.
    pub(crate) fn max_packet(
        &mut self,
        local: &PktInfo,
        balancer: IpAddr,
        now: Instant,
    ) -> Option<u16> {
        if local.interface == LOOPBACK {
            return Some(u16::MAX);
        }
        let egress = self.find(local.ip, balancer, now)?;
        let max_packet = u16::try_from(egress.mtu).unwrap_or(u16::MAX);
        (egress.interface == local.interface).then_some(max_packet)
    }

    /// Looks up all pairs again and forgets those whose egress has changed. Returns whether any pair was forgotten since the
    /// last call: offloaded sessions may depend on such a pair, and further changes of its route would go unseen.
    pub(crate) fn refresh(&mut self) -> bool {
        let before = self.known.len();
        self.known.retain(|(local, balancer), egress| {
            Egress::lookup(*local, *balancer).ok() == Some(*egress)
        });
        mem::take(&mut self.is_cleared) || self.known.len() < before
    }

    fn find(&mut self, local: IpAddr, balancer: IpAddr, now: Instant) -> Option<Egress> {
        let key = (local.to_canonical(), balancer.to_canonical());
        if let Some(known) = self.known.get(&key) {
            return Some(*known);
        }
        if self.known.len() >= MAX_EGRESSES {
            if self.cleared_at.is_some_and(|at| now < at + CLEAR_INTERVAL) {
                return None;
            }
            // It is not known which pairs are in use. Sessions that are offloaded again add theirs again.
            self.known.clear();
            (self.cleared_at, self.is_cleared) = (Some(now), true);
        }
        let egress = Egress::lookup(key.0, key.1).ok()?;
        self.known.insert(key, egress);
        Some(egress)
    }
}

/// Limit of cached pairs. Each is looked up again every second, which takes some 20 us.
const MAX_EGRESSES: usize = 256;
/// If more pairs are in use, the cache is cleared this often, and all sessions are reclaimed from the kernel.
const CLEAR_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn full_cache_is_cleared_once_an_interval() {
        let (mut cache, start) = (EgressCache::default(), Instant::now());
        let balancer = |number: u32| IpAddr::from(Ipv4Addr::from_bits(0x7f01_0000 + number));
        let mut find = |number, now| {
            let found = cache.find(Ipv4Addr::LOCALHOST.into(), balancer(number), now);
            (found.is_some(), cache.refresh())
        };
        for number in 0..256_u32 {
            assert_eq!(find(number, start), (true, false));
        }
        assert_eq!(find(256, start), (true, true), "cleared");
        for number in 257..512 {
            assert_eq!(find(number, start), (true, false));
        }
        let soon = start + CLEAR_INTERVAL - Duration::from_secs(1);
        assert_eq!(find(512, soon), (false, false));
        assert_eq!(find(511, soon), (true, false));
        assert_eq!(find(512, start + CLEAR_INTERVAL), (true, true));
    }
}
