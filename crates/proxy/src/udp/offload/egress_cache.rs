//! The egress of replies: the device, and the largest packet it sends. Offload depends on both, so changes are
//! detected.

use std::collections::HashMap;
use std::mem;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use peername_sys::netlink::{Egress, LOOPBACK};
use peername_sys::udp::PktInfo;

/// The egress from an address of this host to a balancer, for all pairs in use.
#[derive(Debug, Default)]
pub(crate) struct EgressCache {
    known: HashMap<(IpAddr, IpAddr), Egress>,
    /// When the pairs were last forgotten for want of space. Some may be in use.
    cleared: Option<Instant>,
    /// Whether that was since the last refresh.
    has_forgotten: bool,
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

    /// Looks up all again and forgets those that have changed. Returns whether any was forgotten since the last call: a
    /// change of its route would not be seen.
    pub(crate) fn refresh(&mut self) -> bool {
        let before = self.known.len();
        self.known.retain(|(local, balancer), egress| {
            Egress::lookup(*local, *balancer).ok() == Some(*egress)
        });
        mem::take(&mut self.has_forgotten) || self.known.len() < before
    }

    fn find(&mut self, local: IpAddr, balancer: IpAddr, now: Instant) -> Option<Egress> {
        let key = (local.to_canonical(), balancer.to_canonical());
        if let Some(known) = self.known.get(&key) {
            return Some(*known);
        }
        if self.known.len() >= MAX_EGRESSES {
            if self.cleared.is_some_and(|at| now < at + CLEAR_INTERVAL) {
                return None;
            }
            // Which pairs are in use is not known. The sessions that are offloaded again bring those back.
            self.known.clear();
            (self.cleared, self.has_forgotten) = (Some(now), true);
        }
        let egress = Egress::lookup(key.0, key.1).ok()?;
        self.known.insert(key, egress);
        Some(egress)
    }
}

/// Each is looked up again every second, which takes some 20 us.
const MAX_EGRESSES: usize = 256;
/// Where more pairs are in use, all sessions are taken back from the kernel this often.
const CLEAR_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn pairs_that_are_no_longer_used_make_room() {
        let (mut cache, start) = (EgressCache::default(), Instant::now());
        let balancer = |number: u32| IpAddr::from(Ipv4Addr::from_bits(0x7f01_0000 + number));
        let mut find = |number, now| {
            let found = cache.find(Ipv4Addr::LOCALHOST.into(), balancer(number), now);
            (found.is_some(), cache.refresh())
        };
        for number in 0..256_u32 {
            assert_eq!(find(number, start), (true, false));
        }
        assert_eq!(find(256, start), (true, true));
        for number in 257..512 {
            assert_eq!(find(number, start), (true, false));
        }
        let soon = start + CLEAR_INTERVAL - Duration::from_secs(1);
        assert_eq!(find(512, soon), (false, false));
        assert_eq!(find(511, soon), (true, false));
        assert_eq!(find(512, start + CLEAR_INTERVAL), (true, true));
    }
}
