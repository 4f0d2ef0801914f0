//! A bounded LRU table: eviction candidates and idle timeouts in constant time, however full it is.
//!
//! A flood of clients that are never answered must not evict clients that are answered. Nor may idle answered clients
//! keep new ones from getting a first answer. So unanswered and answered entries have separate LRU queues, and each
//! balancer has two such queues for its own entries, too. At a limit, the least recently used unanswered entry is
//! evicted if at least 1/[`UNANSWERED_FRACTION`] of all entries are unanswered, else the least recently used answered
//! one.
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
    ids: HashMap<K, u32>,
    slots: Vec<Slot<K, T>>,
    free: Vec<u32>,
    all: Queues,
    balancers: HashMap<IpAddr, Balancer>,
    /// The links of the queues in `all`, by slot.
    among_all: Links,
    /// The links of the queues of balancers, by slot.
    among_balancers: Links,
}

/// Limits of a table: how many entries, and for how long.
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

/// Identifies an entry until it is removed: a slot that is used again has another generation.
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
    used: Instant,
    answered: bool,
    value: T,
}

/// An entry, with its state.
#[derive(Debug)]
pub(crate) struct EntryRef<'a, K, T> {
    pub(crate) id: EntryId,
    pub(crate) key: &'a K,
    pub(crate) balancer: IpAddr,
    pub(crate) used: Instant,
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
            ids: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            all: Queues::default(),
            balancers: HashMap::new(),
            among_all: Links::default(),
            among_balancers: Links::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn find(&self, key: &K) -> Option<EntryId> {
        self.id_of(*self.ids.get(key)?)
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

    /// How many slots there are, used or free.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Makes room for another entry of `balancer`: evicts an entry if a limit is reached, and returns its value.
    pub(crate) fn evict_for(&mut self, balancer: IpAddr) -> Option<T> {
        let victim = self.eviction_candidate_for(balancer)?;
        self.remove(victim)
    }

    /// The entry to evict before `balancer` may have another. A balancer at its own limit loses one of its own entries;
    /// at the limit of all entries, any balancer may lose one. `None` where there is room.
    pub(crate) fn eviction_candidate_for(&self, balancer: IpAddr) -> Option<EntryId> {
        let of_balancer = self.balancers.get(&balancer);
        let victim = match of_balancer {
            Some(balancer) if balancer.entries >= self.limits.per_balancer => {
                balancer.queues.next_victim()
            }
            _ if self.len() >= self.limits.entries => self.all.next_victim(),
            _ => None,
        }?;
        self.id_of(victim)
    }

    /// Whether a balancer has as many entries as it may.
    pub(crate) fn is_balancer_at_limit(&self, balancer: IpAddr) -> bool {
        let of_balancer = self.balancers.get(&balancer);
        of_balancer.is_some_and(|balancer| balancer.entries >= self.limits.per_balancer)
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, id: EntryId) -> Option<T> {
        self.get(id)?;
        self.remove_slot(id.slot)
    }

    /// The entry to evict first, of all balancers. `None` in an empty table.
    pub(crate) fn eviction_candidate(&self) -> Option<EntryId> {
        self.id_of(self.all.next_victim()?)
    }

    /// When an entry was used last.
    pub(crate) fn last_used(&self, id: EntryId) -> Option<Instant> {
        self.get(id)?;
        let slot = self.slots.get(id.slot as usize)?;
        Some(slot.entry.as_ref()?.used)
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
                used: entry.used,
                is_answered: entry.answered,
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
        let cell = &mut self.slots[slot as usize];
        cell.entry = Some(Entry {
            key,
            balancer,
            used: now,
            answered: false,
            value,
        });
        let id = EntryId {
            slot,
            generation: cell.generation,
        };
        self.ids.insert(key, slot);
        self.balancers.entry(balancer).or_default().entries += 1;
        self.enqueue(slot);
        id
    }

    /// Marks an entry as just used; with `answered`, as answered too.
    pub(crate) fn touch(&mut self, id: EntryId, now: Instant, answered: bool) {
        if self.get(id).is_none() {
            return;
        }
        self.unlink(id.slot);
        if let Some(entry) = self.slots[id.slot as usize].entry.as_mut() {
            entry.used = now;
            entry.answered |= answered;
        }
        self.enqueue(id.slot);
    }

    /// Removes one entry that has expired, if there is one.
    pub(crate) fn remove_expired(&mut self, now: Instant) -> Option<T> {
        let victim = self.find_expired(now)?;
        self.remove(victim)
    }

    /// One entry that has expired, if there is one.
    pub(crate) fn find_expired(&self, now: Instant) -> Option<EntryId> {
        let over = |head: Option<u32>, limit: Duration| {
            let slot = head?;
            let entry = self.slots.get(slot as usize)?.entry.as_ref()?;
            (now.saturating_duration_since(entry.used) >= limit).then_some(slot)
        };
        let victim = over(self.all.unanswered.head(), self.limits.unanswered)
            .or_else(|| over(self.all.answered.head(), self.limits.idle))?;
        self.id_of(victim)
    }

    /// Appends a slot to its two queues, as the most recently used.
    fn enqueue(&mut self, slot: u32) {
        let Some((balancer, answered)) = self.balancer_and_state(slot) else {
            return;
        };
        self.all.queue_mut(answered).push(&mut self.among_all, slot);
        let queues = &mut self.balancers.entry(balancer).or_default().queues;
        queues
            .queue_mut(answered)
            .push(&mut self.among_balancers, slot);
    }

    fn unlink(&mut self, slot: u32) {
        let Some((balancer, answered)) = self.balancer_and_state(slot) else {
            return;
        };
        self.all
            .queue_mut(answered)
            .remove(&mut self.among_all, slot);
        if let Some(balancer) = self.balancers.get_mut(&balancer) {
            let queue = balancer.queues.queue_mut(answered);
            queue.remove(&mut self.among_balancers, slot);
        }
    }

    fn balancer_and_state(&self, slot: u32) -> Option<(IpAddr, bool)> {
        let entry = self.slots.get(slot as usize)?.entry.as_ref()?;
        Some((entry.balancer, entry.answered))
    }

    fn remove_slot(&mut self, slot: u32) -> Option<T> {
        self.unlink(slot);
        let cell = self.slots.get_mut(slot as usize)?;
        let entry = cell.entry.take()?;
        cell.generation = cell.generation.wrapping_add(1);
        self.free.push(slot);
        self.ids.remove(&entry.key);
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
    fn queue_mut(&mut self, answered: bool) -> &mut Queue {
        if answered {
            &mut self.answered
        } else {
            &mut self.unanswered
        }
    }

    /// The slot to evict first.
    fn next_victim(&self) -> Option<u32> {
        let all = self.unanswered.len() + self.answered.len();
        let (first, then) = match self.unanswered.len() >= (all / UNANSWERED_FRACTION).max(1) {
            true => (self.unanswered, self.answered),
            false => (self.answered, self.unanswered),
        };
        first.head().or_else(|| then.head())
    }
}

/// An eighth of a full table is left to unanswered entries, so that new clients live to see their first answer.
const UNANSWERED_FRACTION: usize = 8;

#[cfg(test)]
mod tests;
