use super::*;
use crate::{HeaderPolicy, Policy, Settings, SocketListing, SourcePolicy, zeroed_memory};
use std::net::{IpAddr, Ipv4Addr};
use std::thread;

fn identity(number: u64) -> Identity {
    let ip = |net: u32| {
        IpAddr::V4(Ipv4Addr::from_bits(
            net << 24 | u32::try_from(number).unwrap(),
        ))
    };
    let port = u16::try_from(number % 60_000).unwrap();
    Identity {
        client: SocketAddr::new(ip(198), port),
        destination: SocketAddr::new("2001:db8::1".parse().unwrap(), 443),
        namespace: 7,
    }
}

fn key(cookie: u64) -> SocketKey {
    SocketKey::from_cookie(cookie).unwrap()
}

fn peer(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

impl Table<'_> {
    fn put(self, cookie: u64) -> Result<(), NotStored> {
        self.insert(key(cookie), peer(1), &identity(cookie))
    }

    fn get(self, cookie: u64) -> Option<Identity> {
        self.find(key(cookie), Some(peer(1)))
    }
}

#[test]
fn inserted_identities_are_found_and_no_others() {
    let memory = zeroed_memory(1024);
    let table = Table::new(&memory).unwrap();
    for cookie in 1..=600 {
        table.put(cookie).unwrap();
    }
    for cookie in 1..=600 {
        assert_eq!(table.get(cookie), Some(identity(cookie)));
    }
    assert_eq!(table.get(601), None);
    assert_eq!(table.settings().used(), 600);
    table
        .occupied_slots()
        .filter(|slot| slot.key.word() % 2 == 1)
        .for_each(|slot| table.remove(slot));
    assert_eq!((table.get(3), table.get(4)), (None, Some(identity(4))));
    assert_eq!(table.settings().used(), 300);
}

#[test]
fn full_table_refuses_and_a_late_remove_spares_the_successor() {
    let memory = zeroed_memory(64);
    let table = Table::new(&memory).unwrap();
    for cookie in 1..=64 {
        table.put(cookie).unwrap();
    }
    assert!(table.needs_sweep_for(key(65)));
    assert_eq!(table.put(65), Err(NotStored::Full));
    let slot = table
        .occupied_slots()
        .find(|slot| slot.key == key(5))
        .unwrap();
    table.remove(slot);
    table.put(65).unwrap();
    table.remove(slot);
    assert_eq!(table.get(65), Some(identity(65)));
}

#[test]
fn second_socket_with_the_same_key_is_not_stored() {
    let memory = zeroed_memory(64);
    let table = Table::new(&memory).unwrap();
    table.put(7).unwrap();
    let second = table.insert(key(7), peer(2), &identity(8));
    assert_eq!(second, Err(NotStored::KeyInUse));
    assert!(!table.needs_sweep_for(key(7)));
    assert_eq!(table.get(7), Some(identity(7)));
    assert_eq!(table.find(key(7), Some(peer(2))), None);
    assert_eq!(table.find(key(7), None), Some(identity(7)));
    assert_eq!(table.settings().used(), 1);
}

/// If one identity is stored, it is that of the writer whose insert succeeded.
#[test]
fn at_most_one_of_two_writers_with_the_same_key_succeeds() {
    let memory = zeroed_memory(64);
    let table = Table::new(&memory).unwrap();
    let rounds = if cfg!(miri) { 3 } else { 3_000 };
    for _ in 0..rounds {
        let store = |port| {
            table
                .insert(key(7), peer(port), &identity(port.into()))
                .is_ok()
        };
        let stored = thread::scope(|scope| {
            [1, 2]
                .map(|port| scope.spawn(move || store(port)))
                .map(|writer| writer.join().unwrap())
        });
        assert_ne!(stored, [true, true]);
        let found = [1, 2].map(|port| table.find(key(7), Some(peer(port))).is_some());
        assert_eq!(found, stored);
        table.occupied_slots().for_each(|slot| table.remove(slot));
    }
    assert_eq!(table.settings().used(), 0);
}

#[test]
fn sweep_is_claimed_once_and_then_when_half_of_the_free_slots_are_occupied() {
    let memory = zeroed_memory(64);
    let table = Table::new(&memory).unwrap();
    let policy = Policy {
        judged_by_waiter: true,
        header_required: true,
        all_ports: false,
        show_destination: false,
        headers: HeaderPolicy::default(),
        sources: SourcePolicy::AllowLocal,
        max_header: 4096,
        namespace: 0,
        listing: SocketListing::Proc,
    };
    assert!(Table::open(&memory).is_none());
    table.settings().write(policy, &[], [5, 6]);
    let settings: Settings<'_> = Table::open(&memory).unwrap().settings();
    assert_eq!(settings.policy(), policy);
    assert_eq!(settings.pass(), [5, 6]);
    let fill = |cookies: std::ops::RangeInclusive<u64>| {
        cookies.for_each(|cookie| table.put(cookie).unwrap());
    };
    fill(1..=31);
    assert!(!settings.claim_sweep());
    fill(32..=32);
    assert!(settings.claim_sweep() && !settings.claim_sweep());
    settings.schedule_sweep();
    assert!(!settings.claim_sweep());
    fill(33..=48);
    assert!(settings.claim_sweep());
}

#[test]
fn mark_and_sweep_spares_entries_inserted_meanwhile() {
    let memory = zeroed_memory(64);
    let table = Table::new(&memory).unwrap();
    let insert = |cookie| table.put(cookie).unwrap();
    insert(1);
    insert(2);
    let sweep = |marked: &[u64], between: &dyn Fn()| {
        let sweep = table.begin_sweep();
        marked
            .iter()
            .for_each(|&cookie| table.mark(key(cookie), sweep));
        between();
        table.remove_unmarked(sweep, 8); // another namespace's
        table.remove_unmarked(sweep, 7);
        [1, 2, 3].map(|cookie| table.get(cookie).is_some())
    };
    // The first sweep spares every entry: no sweep had begun before they were inserted.
    assert_eq!(sweep(&[1, 99], &|| {}), [true, true, false]);
    assert_eq!(sweep(&[1], &|| insert(3)), [true, false, true]);
    assert_eq!(sweep(&[], &|| {}), [false, false, true]);
    assert_eq!(sweep(&[3], &|| {}), [false, false, true]);
}

#[test]
fn memory_of_another_size_is_no_table() {
    let memory = zeroed_memory(1024);
    assert!(Table::new(&memory[..memory.len() - 1]).is_none());
    assert!(Table::new(&memory[..100]).is_none());
}

/// Readers among writers that free and fill the same few slots never see a mixture.
#[test]
fn readers_see_whole_identities_or_none() {
    let memory = zeroed_memory(64);
    let table = Table::new(&memory).unwrap();
    thread::scope(|scope| {
        for writer in 0..2 {
            scope.spawn(move || {
                for round in 0..20_000 {
                    let cookie = round * 2 + writer + 1;
                    table.put(cookie).unwrap();
                    let slot = table.occupied_slots().find(|slot| slot.key == key(cookie));
                    table.remove(slot.unwrap());
                }
            });
        }
        scope.spawn(move || {
            for cookie in 1..40_000 {
                if let Some(found) = table.get(cookie) {
                    assert_eq!(found, identity(cookie));
                }
            }
        });
    });
    assert_eq!(table.settings().used(), 0);
}

/// The only free slot is occupied by one socket after another, while another thread reads it. On x86 this can't fail for
/// lack of a fence; it does under Miri (CONTRIBUTING.md), which emulates weak memory: stores become visible in any order
/// that is allowed.
#[test]
fn reader_never_sees_a_mixture_in_a_reused_slot() {
    let memory = zeroed_memory(64);
    let table = Table::new(&memory).unwrap();
    for cookie in 1..=63 {
        table.put(cookie).unwrap();
    }
    let last = 64 + if cfg!(miri) { 20 } else { 20_000 };
    let current = AtomicU64::new(64);
    thread::scope(|scope| {
        scope.spawn(|| {
            for cookie in 64..=last {
                table.put(cookie).unwrap();
                current.store(cookie, Ordering::Relaxed);
                let slot = table.occupied_slots().find(|slot| slot.key == key(cookie));
                table.remove(slot.unwrap());
            }
        });
        loop {
            let cookie = current.load(Ordering::Relaxed);
            if let Some(found) = table.get(cookie) {
                assert_eq!(found, identity(cookie));
            }
            if cookie == last {
                break;
            }
        }
    });
}
