//! The in-flight calls: received and not answered yet, in memory that outlives the supervisor.
//!
//! The kernel reports a call once. If the supervisor dies, the next holder of the listener does not receive the calls that
//! were received before, and their threads would wait for ever. So the calls are recorded here: the monitor ends their
//! processes, and the next supervisor of a container answers them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use peername_sys::ipc::shared_memory::{self, create_anonymous, map_words};
use peername_sys::seccomp::Notification;
use peername_sys::{NameCall, Result};

/// The in-flight calls. Copies share the memory, in every process forked from here on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InflightCalls(&'static [AtomicU64]);

/// A slot of the record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InflightSlot(usize);

/// A call of the record, and its slot.
#[derive(Debug)]
pub(crate) struct InflightCall {
    pub(super) slot: InflightSlot,
    pub(crate) call: Notification,
}

impl InflightCalls {
    /// Creates an empty record, in anonymous shared memory.
    ///
    /// # Errors
    ///
    /// Those of memfd_create(2) and mmap(2).
    pub(super) fn new() -> Result<Self> {
        Self::map(Self::create_memory()?)
    }

    /// The memory of an empty record, as a file.
    ///
    /// # Errors
    ///
    /// Those of memfd_create(2).
    pub(crate) fn create_memory() -> Result<OwnedFd> {
        create_anonymous("peername-inflight", SIZE)
    }

    /// The record in this memory, which [`InflightCalls::create_memory`] has made.
    ///
    /// # Errors
    ///
    /// Those of mmap(2).
    fn map(memory: impl AsFd) -> Result<Self> {
        map_words(memory, SIZE).map(Self)
    }

    /// The record in the memory of a container, for this process alone: waits until no other supervisor has it.
    ///
    /// # Errors
    ///
    /// Those of open(2), flock(2) and mmap(2); or the memory is that of another version.
    pub(crate) fn lock(memory: impl AsFd) -> Result<Self> {
        let alone = shared_memory::lock_anonymous(memory)?;
        if alone.metadata().call("fstat(2)")?.len() != SIZE as u64 {
            let other = io::Error::other("it is of another version of peername");
            return Err(other).call("opening the record of calls");
        }
        // The mapping keeps the lock.
        Self::map(alone)
    }

    /// Records a call. `None` if there is no free slot: the call must be answered at once.
    pub(crate) fn insert(self, call: &Notification) -> Option<InflightSlot> {
        let (slots, _) = self.0.as_chunks::<WORDS>();
        let free = slots
            .iter()
            .position(|slot| state(slot).load(Ordering::Relaxed) == FREE)?;
        let slot = slots.get(free)?;
        let [_, words @ ..] = slot;
        for (word, value) in words.iter().zip(call.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        // In this order: a slot that is taken has its call.
        state(slot).store(TAKEN, Ordering::Release);
        Some(InflightSlot(free))
    }

    /// Frees the slot of a call that was answered, or is over.
    pub(super) fn remove(self, slot: InflightSlot) {
        let (slots, _) = self.0.as_chunks::<WORDS>();
        if let Some(slot) = slots.get(slot.0) {
            state(slot).store(FREE, Ordering::Relaxed);
        }
    }

    /// All in-flight calls.
    pub(crate) fn iter(self) -> impl Iterator<Item = InflightCall> {
        let (slots, _) = self.0.as_chunks::<WORDS>();
        slots.iter().enumerate().filter_map(|(index, slot)| {
            let [state, words @ ..] = slot;
            let is_taken = state.load(Ordering::Acquire) == TAKEN;
            let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
            is_taken.then(|| InflightCall {
                slot: InflightSlot(index),
                call: Notification::from_words(words.each_ref().map(word)),
            })
        })
    }
}

fn state(slot: &[AtomicU64; WORDS]) -> &AtomicU64 {
    let [state, ..] = slot;
    state
}

/// Whether the slot is taken, and the call.
const WORDS: usize = 1 + Notification::WORDS;
const FREE: u64 = 0;
const TAKEN: u64 = 1;
/// Slots: threads that wait in accept(2) at the same time, more than any server has. Pages that are not used take no memory.
const CAPACITY: usize = 4096;
const SIZE: usize = CAPACITY * WORDS * size_of::<u64>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_a_full_record_returns_none() {
        let inflight = InflightCalls::new().unwrap();
        let call =
            |tid: u64| Notification::from_words([1000 + tid, tid, 43 << 32, 1, 2, 3, 4, 5, 6]);
        let mut slots: Vec<_> = (1..=CAPACITY as u64)
            .map(|tid| inflight.insert(&call(tid)).unwrap())
            .collect();
        assert_eq!(inflight.insert(&call(9999)), None);
        inflight.remove(slots.remove(7));
        assert_eq!(inflight.insert(&call(9999)), Some(InflightSlot(7)));
        assert_eq!(inflight.iter().count(), CAPACITY);
        let found = inflight.iter().nth(7).unwrap();
        assert_eq!(found.call.to_words(), call(9999).to_words());
    }
}
