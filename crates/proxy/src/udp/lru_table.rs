//! A bounded LRU table: eviction candidates and idle timeouts in constant time, however full it is.
//!
//! A flood of clients that the backend never answers must not evict clients that it answers, and idle answered clients must
//! leave room for new ones. So unanswered and answered entries have separate LRU queues, and each balancer has two such queues
//! for its own entries, too. At a limit, the least recently used unanswered entry is evicted if the unanswered entries are
//! 1/[`UNANSWERED_FRACTION`] of all (rounded down, but one at least) or more, else the least recently used answered entry.
//!
//! The table knows neither sockets nor datagrams.

mod queue;

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use queue::{Links, Queue};

/// The table: values `T` by key.
#[derive(Debug)]
pub(crate) struct LruTable<K, T> {
    limits: TableLimits,
    slots_by_key: HashMap<K, u32>,
    slots: Vec<Slot<K, T>>,
    free: Vec<u32>,
    all: Queues,
    balancers: HashMap<IpAddr, Balancer>,
    /// The links of the queues in `all`, by slot.
    all_links: Links,
    /// The links of the queues of balancers, by slot.
    balancer_links: Links,
}

/// Limits of a table: the number of entries, and their idle timeouts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableLimits {
    /// Limit of all entries.
    pub(crate) entries: usize,
    /// Limit of one balancer's entries.
    pub(crate) per_balancer: usize,
    /// Idle timeout of an answered entry.
    pub(crate) idle: Duration,
    /// Idle timeout of an entry that was never answered.
    pub(crate) unanswered: Duration,
}

impl TableLimits {
    /// Limit of one balancer's entries in a table of at most `entries`: two thirds, so that a balancer at its limit leaves room
    /// for the others.
    pub(crate) fn balancer_share(entries: usize) -> usize {
        (entries * 2 / 3).max(1)
    }
}

/// Identifies an entry until it is removed: a later entry in the same slot has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EntryId {
    slot: u32,
    generation: u32,
}

#[derive(Debug)]
struct Slot<K, T> {
    generation: u32,
    entry: Option<Entry<K, T>>,
}

#[derive(Debug)]
struct Entry<K, T> {
    key: K,
    balancer: IpAddr,
    used_at: Instant,
    is_answered: bool,
    value: T,
}

/// An entry, with its state.
#[derive(Debug)]
pub(crate) struct EntryRef<'a, K, T> {
    pub(crate) id: EntryId,
    pub(crate) key: &'a K,
    pub(crate) balancer: IpAddr,
    pub(crate) used_at: Instant,
    pub(crate) is_answered: bool,
    pub(crate) value: &'a T,
}

#[derive(Debug, Default)]
struct Queues {
    unanswered: Queue,
    answered: Queue,
}

#[derive(Debug, Default)]
struct Balancer {
    queues: Queues,
    entries: usize,
}

impl EntryId {
    /// The id as a number, the user data of epoll(7).
    pub(crate) fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The id of a number made by [`EntryId::to_u64`].
    pub(crate) fn from_u64(number: u64) -> Self {
        Self {
            slot: number as u32,
            generation: (number >> 32) as u32,
        }
    }
}

impl<K: Copy + Eq + Hash, T> LruTable<K, T> {
    pub(crate) fn new(limits: TableLimits) -> Self {
        Self {
            limits,
            slots_by_key: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            all: Queues::default(),
            balancers: HashMap::new(),
            all_links: Links::default(),
            balancer_links: Links::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots_by_key.len()
    }

    pub(crate) fn find(&self, key: &K) -> Option<EntryId> {
        self.id_of(*self.slots_by_key.get(key)?)
    }

    fn id_of(&self, slot: u32) -> Option<EntryId> {
        let generation = self.slots.get(slot as usize)?.generation;
        Some(EntryId { slot, generation })
    }

    pub(crate) fn get_mut(&mut self, id: EntryId) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        let entry = slot.entry.as_mut()?;
        (slot.generation == id.generation).then_some(&mut entry.value)
    }

    pub(crate) fn get(&self, id: EntryId) -> Option<&T> {
        let slot = self.slots.get(id.slot as usize)?;
        let entry = slot.entry.as_ref()?;
        (slot.generation == id.generation).then_some(&entry.value)
    }

    /// The number of slots, used or free.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Evicts an entry if a limit leaves no room for another one of `balancer`. Returns its value.
    pub(crate) fn evict_for(&mut self, balancer: IpAddr) -> Option<T> {
        let candidate = self.eviction_candidate_for(balancer)?;
        self.remove(candidate)
    }

    /// The entry to evict before `balancer` may have another: one of its own at the balancer's limit, one of any balancer at
    /// the limit of all entries. `None` where there is room.
    pub(crate) fn eviction_candidate_for(&self, balancer: IpAddr) -> Option<EntryId> {
        let slot = match self.balancers.get(&balancer) {
            Some(balancer) if balancer.entries >= self.limits.per_balancer => {
                balancer.queues.next_victim()
            }
            _ if self.len() >= self.limits.entries => self.all.next_victim(),
            _ => None,
        }?;
        self.id_of(slot)
    }

    /// Whether a balancer has as many entries as it may have.
    pub(crate) fn is_balancer_at_limit(&self, balancer: IpAddr) -> bool {
        self.balancers
            .get(&balancer)
            .is_some_and(|balancer| balancer.entries >= self.limits.per_balancer)
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, id: EntryId) -> Option<T> {
        self.get(id)?;
        self.remove_slot(id.slot)
    }

    /// The entry to evict before `balancer` may have another in a table that can't grow (no port is left, say): one of its own if
    /// it has its share of the entries, else one of any balancer. `None` in an empty table.
    pub(crate) fn eviction_candidate_if_full(&self, balancer: IpAddr) -> Option<EntryId> {
        let share = TableLimits::balancer_share(self.len());
        let queues = match self.balancers.get(&balancer) {
            Some(balancer) if balancer.entries >= share => &balancer.queues,
            _ => &self.all,
        };
        self.id_of(queues.next_victim()?)
    }

    /// The entry to evict first, of all balancers. `None` in an empty table.
    pub(crate) fn eviction_candidate(&self) -> Option<EntryId> {
        self.id_of(self.all.next_victim()?)
    }

    /// When an entry was used last.
    pub(crate) fn last_used(&self, id: EntryId) -> Option<Instant> {
        self.get(id)?;
        let slot = self.slots.get(id.slot as usize)?;
        Some(slot.entry.as_ref()?.used_at)
    }

    /// All entries, in no order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = EntryRef<'_, K, T>> {
        self.in_slots(0..self.slots.len())
    }

    /// The entries in these slots.
    pub(crate) fn in_slots(&self, range: Range<usize>) -> impl Iterator<Item = EntryRef<'_, K, T>> {
        let range = range.start..range.end.min(self.slots.len());
        let first = range.start as u32;
        let slots = (first..).zip(self.slots.get(range).unwrap_or_default());
        slots.filter_map(|(slot, Slot { generation, entry })| {
            let entry = entry.as_ref()?;
            let generation = *generation;
            Some(EntryRef {
                id: EntryId { slot, generation },
                key: &entry.key,
                balancer: entry.balancer,
                used_at: entry.used_at,
                is_answered: entry.is_answered,
                value: &entry.value,
            })
        })
    }

    /// Inserts an entry as unanswered and just used. The key must be new, and there must be room
    /// ([`LruTable::evict_for`]).
    pub(crate) fn insert(&mut self, key: K, balancer: IpAddr, now: Instant, value: T) -> EntryId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                entry: None,
            });
            (self.slots.len() - 1) as u32
        });
        let free = &mut self.slots[slot as usize];
        free.entry = Some(Entry {
            key,
            balancer,
            used_at: now,
            is_answered: false,
            value,
        });
        let id = EntryId {
            slot,
            generation: free.generation,
        };
        self.slots_by_key.insert(key, slot);
        self.balancers.entry(balancer).or_default().entries += 1;
        self.enqueue(slot);
        id
    }

    /// Marks an entry as just used; with `is_answered`, also as answered.
    pub(crate) fn touch(&mut self, id: EntryId, now: Instant, is_answered: bool) {
        if self.get(id).is_none() {
            return;
        }
        self.unlink(id.slot);
        if let Some(entry) = self.slots[id.slot as usize].entry.as_mut() {
            entry.used_at = now;
            entry.is_answered |= is_answered;
        }
        self.enqueue(id.slot);
    }

    /// Makes entries expire after this time at the latest.
    pub(crate) fn shorten_timeouts(&mut self, timeout: Duration) {
        self.limits.idle = self.limits.idle.min(timeout);
        self.limits.unanswered = self.limits.unanswered.min(timeout);
    }

    /// Removes one expired entry, if there is one.
    pub(crate) fn remove_expired(&mut self, now: Instant) -> Option<T> {
        let expired = self.find_expired(now)?;
        self.remove(expired)
    }

    /// Finds one expired entry, if there is one.
    pub(crate) fn find_expired(&self, now: Instant) -> Option<EntryId> {
        let find_in = |queue: &Queue, idle_timeout: Duration| {
            let slot = queue.head()?;
            let entry = self.slots.get(slot as usize)?.entry.as_ref()?;
            (now.saturating_duration_since(entry.used_at) >= idle_timeout).then_some(slot)
        };
        let expired = find_in(&self.all.unanswered, self.limits.unanswered)
            .or_else(|| find_in(&self.all.answered, self.limits.idle))?;
        self.id_of(expired)
    }

    /// Appends a slot to its two queues, as the most recently used.
    fn enqueue(&mut self, slot: u32) {
        let Some((balancer, is_answered)) = self.balancer_and_state(slot) else {
            return;
        };
        self.all
            .queue_mut(is_answered)
            .push(&mut self.all_links, slot);
        let queues = &mut self.balancers.entry(balancer).or_default().queues;
        queues
            .queue_mut(is_answered)
            .push(&mut self.balancer_links, slot);
    }

    /// Removes a slot from its two queues.
    fn unlink(&mut self, slot: u32) {
        let Some((balancer, is_answered)) = self.balancer_and_state(slot) else {
            return;
        };
        self.all
            .queue_mut(is_answered)
            .remove(&mut self.all_links, slot);
        if let Some(balancer) = self.balancers.get_mut(&balancer) {
            let queue = balancer.queues.queue_mut(is_answered);
            queue.remove(&mut self.balancer_links, slot);
        }
    }

    fn balancer_and_state(&self, slot: u32) -> Option<(IpAddr, bool)> {
        let entry = self.slots.get(slot as usize)?.entry.as_ref()?;
        Some((entry.balancer, entry.is_answered))
    }

    fn remove_slot(&mut self, slot: u32) -> Option<T> {
        self.unlink(slot);
        let freed = self.slots.get_mut(slot as usize)?;
        let entry = freed.entry.take()?;
        freed.generation = freed.generation.wrapping_add(1);
        self.free.push(slot);
        self.slots_by_key.remove(&entry.key);
        if let Some(balancer) = self.balancers.get_mut(&entry.balancer) {
            balancer.entries -= 1;
            if balancer.entries == 0 {
                self.balancers.remove(&entry.balancer);
            }
        }
        Some(entry.value)
    }
}

impl Queues {
    fn queue_mut(&mut self, is_answered: bool) -> &mut Queue {
        if is_answered {
            &mut self.answered
        } else {
            &mut self.unanswered
        }
    }

    /// The slot to evict first.
    fn next_victim(&self) -> Option<u32> {
        let all = self.unanswered.len() + self.answered.len();
        let (preferred, other) = if self.unanswered.len() >= (all / UNANSWERED_FRACTION).max(1) {
            (self.unanswered, self.answered)
        } else {
            (self.answered, self.unanswered)
        };
        preferred.head().or_else(|| other.head())
    }
}

/// An eighth of a full table is left to unanswered entries, so that new clients are not evicted before their first answer.
const UNANSWERED_FRACTION: usize = 8;

#[cfg(test)]
mod tests;
