//! Synthetic addresses: an IPv4 and an IPv6 address of [`NameRanges`] for each name.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use peername_sys::throttle::Throttle;

use super::range::NameRanges;
use crate::host::Host;

/// A bounded table of names and their addresses. A name keeps its address until it is evicted for another name, which
/// happens only when the table is full, and not while the name may be in a resolver's cache.
#[derive(Debug)]
pub struct SyntheticNames {
    table: Mutex<Table>,
    ranges: NameRanges,
    has_v6: bool,
}

#[derive(Debug)]
struct Table {
    max_names: usize,
    slots: Vec<Slot>,
    by_name: HashMap<Host, usize>,
    /// The slot to be examined next for eviction.
    hand: usize,
}

#[derive(Debug)]
struct Slot {
    name: Host,
    /// Part of the address: the next name of the slot gets another one, so that a client with an outdated address does not
    /// reach the wrong name.
    generation: usize,
    used: Instant,
}

/// The result of a lookup by address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameLookup {
    /// The name to which the address is assigned.
    Name(Host),
    /// A synthetic address that is assigned to no name, or no longer.
    Unassigned,
    /// An address that is not synthetic.
    Literal(IpAddr),
}

impl SyntheticNames {
    /// An empty table. `has_v6`: names get IPv6 addresses, too.
    #[must_use]
    pub fn new(ranges: NameRanges, has_v6: bool) -> Self {
        let host_bits = ranges.v4.max_prefix_len() - ranges.v4.prefix_len();
        let slots = (1 << host_bits) / GENERATIONS;
        let table = Table {
            max_names: slots.saturating_sub(FIRST).min(MAX_NAMES),
            slots: Vec::new(),
            by_name: HashMap::new(),
            hand: 0,
        };
        Self {
            table: Mutex::new(table),
            ranges,
            has_v6,
        }
    }

    /// The IPv4 address of this name, assigned now if the name has none. `None` if the table is full of names that were used
    /// within [`MIN_LIFETIME`].
    pub(super) fn v4(&self, name: &Host) -> Option<Ipv4Addr> {
        let offset = self.offset(name)?;
        Some(Ipv4Addr::from_bits(
            self.ranges.v4.addr().to_bits() + offset,
        ))
    }

    /// The IPv6 address of this name, as [`SyntheticNames::v4`].
    pub(super) fn v6(&self, name: &Host) -> Option<Ipv6Addr> {
        let offset = self.offset(name)?;
        Some(Ipv6Addr::from_bits(
            self.ranges.v6.addr().to_bits() + u128::from(offset),
        ))
    }

    /// Whether names get IPv6 addresses.
    pub(super) fn has_v6(&self) -> bool {
        self.has_v6
    }

    /// Looks up the name of an address, which counts as a use of the name.
    #[must_use]
    pub fn find(&self, ip: IpAddr) -> NameLookup {
        let ip = ip.to_canonical();
        let NameRanges { v4, v6 } = self.ranges;
        let offset = match ip {
            IpAddr::V4(ip) if v4.contains(&ip) => u128::from(ip.to_bits() - v4.addr().to_bits()),
            IpAddr::V6(ip) if v6.contains(&ip) => ip.to_bits() - v6.addr().to_bits(),
            _ => return NameLookup::Literal(ip),
        };
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let generation = offset % GENERATIONS;
        let mut table = self.table.lock();
        let slot = (offset / GENERATIONS).checked_sub(FIRST);
        match slot.and_then(|slot| table.slots.get_mut(slot)) {
            Some(slot) if slot.generation == generation => {
                slot.used = Instant::now();
                NameLookup::Name(slot.name.clone())
            }
            _ => NameLookup::Unassigned,
        }
    }

    fn offset(&self, name: &Host) -> Option<u32> {
        let mut table = self.table.lock();
        let Some(slot) = table.get_or_assign(name, Instant::now()) else {
            if let Some(suppressed) = FULL.pass() {
                let names = table.max_names;
                tracing::warn!(
                    suppressed,
                    "a name has no address: the table of {names} names is full, and all that were examined were used within \
                     {MIN_LIFETIME:?}; give a wider --name-range"
                );
            }
            return None;
        };
        let generation = table.slots.get(slot)?.generation;
        u32::try_from((FIRST + slot) * GENERATIONS + generation).ok()
    }
}

impl Table {
    /// The index of the name's slot.
    fn get_or_assign(&mut self, name: &Host, now: Instant) -> Option<usize> {
        if let Some(&at) = self.by_name.get(name) {
            self.slots.get_mut(at)?.used = now;
            return Some(at);
        }
        let at = if self.slots.len() < self.max_names {
            self.slots.push(Slot {
                name: name.clone(),
                generation: 0,
                used: now,
            });
            self.slots.len() - 1
        } else {
            self.evict_for(name, now)?
        };
        self.by_name.insert(name.clone(), at);
        Some(at)
    }

    /// Evicts the next name that was not used lately (second chance). A call examines at most [`MAX_EXAMINED`] names.
    fn evict_for(&mut self, name: &Host, now: Instant) -> Option<usize> {
        for _ in 0..MAX_EXAMINED {
            let at = self.hand;
            self.hand = (at + 1) % self.max_names;
            let slot = self.slots.get_mut(at)?;
            if now.saturating_duration_since(slot.used) < MIN_LIFETIME {
                continue;
            }
            let generation = (slot.generation + 1) % GENERATIONS;
            let evicted = std::mem::replace(
                slot,
                Slot {
                    name: name.clone(),
                    generation,
                    used: now,
                },
            );
            self.by_name.remove(&evicted.name);
            return Some(at);
        }
        None
    }
}

/// The maximum number of names, which take 8 MB if all are of the maximum length. A smaller range holds a name for each
/// [`GENERATIONS`] addresses.
const MAX_NAMES: usize = (1 << 14) - FIRST;
/// Addresses of a slot, which its names get in turn.
const GENERATIONS: usize = 1 << 3;
/// The addresses of the first slot are not assigned: some programs refuse the first address of a network.
const FIRST: usize = 1;
/// How long a response may be cached.
pub(super) const TTL: Duration = Duration::from_secs(60);
/// How long a name stays after it was looked up or connected to: longer than caches keep it, some of which have a minimum.
const MIN_LIFETIME: Duration = Duration::from_secs(150);
static FULL: Throttle = Throttle::new();
/// Bounds the time of a lookup while a flood of names has filled the table.
const MAX_EXAMINED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    fn ranges() -> NameRanges {
        let networks = ["198.18.0.0/15", "fd70:6565:726e:616d::/64"];
        NameRanges::new(&networks.map(|network| network.parse().unwrap())).unwrap()
    }

    #[test]
    fn a_name_keeps_its_address_and_the_address_leads_back_to_it() {
        let names = SyntheticNames::new(ranges(), true);
        let (a, b) = (host("a.test"), host("b.test"));
        let (v4, v6) = (names.v4(&a).unwrap(), names.v6(&a).unwrap());
        assert_ne!(names.v4(&b), Some(v4));
        assert_eq!((names.v4(&a), names.v6(&a)), (Some(v4), Some(v6)));
        assert!(ranges().v4.contains(&v4) && ranges().v6.contains(&v6));
        for ip in [v4.into(), v6.into(), v4.to_ipv6_mapped().into()] {
            assert_eq!(names.find(ip), NameLookup::Name(a.clone()));
        }
    }

    #[test]
    fn addresses_without_a_name_are_unassigned_or_literal() {
        let names = SyntheticNames::new(ranges(), true);
        names.v4(&host("a.test")).unwrap();
        for unassigned in [
            "198.18.0.0",
            "198.18.0.9",
            "198.19.255.255",
            "fd70:6565:726e:616d:ffff:ffff:ffff:ffff",
        ] {
            assert_eq!(
                names.find(unassigned.parse().unwrap()),
                NameLookup::Unassigned,
                "{unassigned}"
            );
        }
        for literal in [
            "198.17.255.255",
            "198.20.0.0",
            "::1",
            "fd70:6565:726e:616e::1",
        ] {
            let ip = literal.parse().unwrap();
            assert_eq!(names.find(ip), NameLookup::Literal(ip));
        }
    }

    /// A flood of names neither takes over the addresses of others nor grows the table.
    #[test]
    fn full_table_evicts_unused_names_only() {
        let names = SyntheticNames::new(ranges(), false);
        let nth = |n: usize| host(&format!("n{n}.test"));
        for n in 0..MAX_NAMES {
            names.v4(&nth(n)).unwrap();
        }
        assert_eq!(names.v4(&nth(MAX_NAMES)), None);
        let old = names.v4(&nth(0)).unwrap();
        let kept = names.v4(&nth(1)).unwrap();
        let long_ago = Instant::now().checked_sub(2 * MIN_LIFETIME).unwrap();
        for slot in names.table.lock().slots.iter_mut() {
            slot.used = long_ago;
        }
        names.table.lock().hand = 0;
        assert_eq!(names.find(kept.into()), NameLookup::Name(nth(1)));
        let new = names.v4(&nth(MAX_NAMES)).unwrap();
        assert_ne!(new, old);
        assert_eq!(names.find(old.into()), NameLookup::Unassigned);
        assert_eq!(names.find(new.into()), NameLookup::Name(nth(MAX_NAMES)));
        // The second chance: a name that was used since is passed over.
        names.v4(&nth(MAX_NAMES + 1)).unwrap();
        assert_eq!(names.find(kept.into()), NameLookup::Name(nth(1)));
        assert_eq!(names.table.lock().by_name.len(), MAX_NAMES);
    }

    #[test]
    fn small_network_has_fewer_names() {
        let network = "10.9.0.0/24".parse().unwrap();
        let names = SyntheticNames::new(NameRanges::new(&[network]).unwrap(), true);
        let assigned: Vec<_> = (0..40)
            .map_while(|n| names.v4(&host(&format!("n{n}.test"))))
            .collect();
        assert_eq!(assigned.len(), 31);
        for ip in assigned {
            assert!(matches!(names.find(ip.into()), NameLookup::Name(_)), "{ip}");
        }
    }
}
