use super::*;

const LIMITS: TableLimits = TableLimits {
    entries: 4,
    per_balancer: 3,
    idle: Duration::from_secs(60),
    unanswered: Duration::from_secs(30),
};

fn balancer(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

struct Fixture {
    table: LruTable<u32, u32>,
    start: Instant,
}

impl Fixture {
    fn new() -> Self {
        Self {
            table: LruTable::new(LIMITS),
            start: Instant::now(),
        }
    }

    fn at(&self, second: u64) -> Instant {
        self.start + Duration::from_secs(second)
    }

    /// Inserts an entry and returns the one that was evicted for it.
    fn add(&mut self, key: u32, of_balancer: u8, second: u64) -> Option<u32> {
        let evicted = self.table.evict_for(balancer(of_balancer));
        self.table
            .insert(key, balancer(of_balancer), self.at(second), key);
        evicted
    }

    fn touch(&mut self, key: u32, second: u64, is_answered: bool) {
        let id = self.table.find(&key).unwrap();
        self.table.touch(id, self.at(second), is_answered);
    }
}

#[test]
fn unanswered_entries_are_evicted_first_least_recently_used_first() {
    let mut fixture = Fixture::new();
    for key in 1..=4 {
        assert_eq!(fixture.add(key, key as u8, 0), None);
    }
    fixture.touch(1, 1, true);
    fixture.touch(2, 2, false);
    assert_eq!(fixture.add(5, 5, 3), Some(3));
    assert_eq!(fixture.add(6, 6, 3), Some(4));
    assert_eq!(fixture.add(7, 7, 3), Some(2));
    for key in [5, 6, 7] {
        fixture.touch(key, 4, true);
    }
    assert_eq!(fixture.add(8, 8, 5), Some(1), "of answered ones the oldest");
}

/// Answered idle entries are evicted for new ones until an eighth of the table is unanswered.
#[test]
fn unanswered_entries_keep_an_eighth_of_the_table() {
    let mut table = LruTable::new(TableLimits {
        entries: 80,
        per_balancer: 40,
        ..LIMITS
    });
    let start = Instant::now();
    let mut add = |key: u32| {
        let evicted = table.evict_for(balancer(1));
        let id = table.insert(key, balancer(1), start, key);
        if key < 40 {
            table.touch(id, start, true);
        }
        evicted
    };
    for key in 0..40 {
        assert_eq!(add(key), None);
    }
    for key in 40..45 {
        assert_eq!(add(key), Some(key - 40), "the oldest answered one");
    }
    for key in 45..60 {
        assert_eq!(add(key), Some(key - 5), "the oldest of the five");
    }
}

#[test]
fn flood_behind_one_balancer_evicts_only_its_own_entries() {
    let mut fixture = Fixture::new();
    fixture.add(1, 1, 0);
    fixture.add(2, 2, 0);
    fixture.touch(2, 0, true);
    for key in 10..1000 {
        fixture.add(key, 2, 1);
    }
    assert!(fixture.table.find(&1).is_some(), "the other balancer's");
    assert!(fixture.table.find(&2).is_some(), "the answered one");
    assert_eq!(fixture.table.len(), 4);
}

/// There is room for three entries, although the limit is four.
#[test]
fn flood_evicts_only_its_own_entries_where_room_ends_before_the_limit() {
    let mut fixture = Fixture::new();
    for (key, of_balancer) in [(1, 1), (2, 2), (3, 2)] {
        fixture.add(key, of_balancer, 0);
        fixture.touch(key, 0, true);
    }
    let candidate = |of_balancer| {
        let id = fixture
            .table
            .eviction_candidate_if_full(balancer(of_balancer))?;
        fixture.table.get(id).copied()
    };
    assert_eq!(candidate(2), Some(2), "the oldest of its own two");
    assert_eq!(candidate(1), Some(1), "the oldest of all");
    assert_eq!(candidate(3), Some(1), "the oldest of all");
}

#[test]
fn unanswered_entries_have_a_shorter_idle_timeout() {
    let mut fixture = Fixture::new();
    fixture.add(1, 1, 0);
    fixture.add(2, 2, 0);
    fixture.touch(1, 0, true);
    assert_eq!(fixture.table.remove_expired(fixture.at(29)), None);
    assert_eq!(fixture.table.remove_expired(fixture.at(30)), Some(2));
    assert_eq!(fixture.table.remove_expired(fixture.at(59)), None);
    fixture.touch(1, 59, false);
    assert_eq!(
        fixture.table.remove_expired(fixture.at(60)),
        None,
        "use refreshes"
    );
    assert_eq!(fixture.table.remove_expired(fixture.at(119)), Some(1));
    assert_eq!(fixture.table.len(), 0);
    assert!(fixture.table.balancers.is_empty());
}

#[test]
fn stale_id_does_not_refer_to_the_slots_next_entry() {
    let mut fixture = Fixture::new();
    fixture.add(1, 1, 0);
    let id = fixture.table.find(&1).unwrap();
    assert_eq!(EntryId::from_u64(id.to_u64()), id);
    assert_eq!(fixture.table.remove_expired(fixture.at(30)), Some(1));
    fixture.add(2, 1, 31);
    assert_eq!(fixture.table.find(&2).unwrap().slot, id.slot);
    assert!(fixture.table.get(id).is_none());
    fixture.table.touch(id, fixture.at(99), true);
    assert_eq!(fixture.table.remove_expired(fixture.at(61)), Some(2));
}

/// An entry of the plain list, in which the most recently used entry is the last.
struct ListEntry {
    key: u32,
    of_balancer: u8,
    is_answered: bool,
}

/// The first unanswered entry, else the first.
fn next_victim(entries: &[&ListEntry]) -> Option<u32> {
    entries
        .iter()
        .find(|entry| !entry.is_answered)
        .or_else(|| entries.first())
        .map(|entry| entry.key)
}

/// Model test against a plain list that is searched: after each operation both hold the same entries.
#[test]
fn table_evicts_as_a_plain_list_does() {
    let mut fixture = Fixture::new();
    let mut list: Vec<ListEntry> = Vec::new();
    let mut random = 12345_u32;
    let mut next = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) % below
    };
    for second in 0..20_000 {
        let (key, is_answered) = (next(12), next(2) == 0);
        if let Some(index) = list.iter().position(|entry| entry.key == key) {
            let mut entry = list.remove(index);
            entry.is_answered |= is_answered;
            list.push(entry);
            fixture.touch(key, second, is_answered);
        } else {
            let of_balancer = (key % 2) as u8;
            let own: Vec<_> = list
                .iter()
                .filter(|entry| entry.of_balancer == of_balancer)
                .collect();
            let evicted = if own.len() >= LIMITS.per_balancer {
                next_victim(&own)
            } else if list.len() >= LIMITS.entries {
                next_victim(&list.iter().collect::<Vec<_>>())
            } else {
                None
            };
            list.retain(|entry| Some(entry.key) != evicted);
            assert_eq!(fixture.add(key, of_balancer, second), evicted);
            list.push(ListEntry {
                key,
                of_balancer,
                is_answered: false,
            });
        }
        let mut keys: Vec<u32> = fixture.table.slots_by_key.keys().copied().collect();
        let mut expected: Vec<u32> = list.iter().map(|entry| entry.key).collect();
        keys.sort_unstable();
        expected.sort_unstable();
        assert_eq!(keys, expected);
    }
}

#[test]
fn shortened_timeouts_apply_to_entries_of_both_states() {
    let mut fixture = Fixture::new();
    fixture.add(1, 1, 0);
    fixture.add(2, 2, 0);
    fixture.touch(2, 1, true);
    assert_eq!(fixture.table.remove_expired(fixture.at(10)), None);
    fixture.table.shorten_timeouts(Duration::from_secs(10));
    assert_eq!(fixture.table.remove_expired(fixture.at(10)), Some(1));
    assert_eq!(fixture.table.remove_expired(fixture.at(10)), None);
    assert_eq!(fixture.table.remove_expired(fixture.at(11)), Some(2));
}
