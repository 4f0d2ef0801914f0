//! The in-flight calls: received and not answered yet, in memory that outlives the supervisor.
//!
//! The kernel reports a call once. If the supervisor dies, the next holder of the listener does not receive the calls that
//! were received before, and their threads would wait for ever. So the calls are recorded here, where the monitor finds
//! them.

use std::sync::atomic::{AtomicU64, Ordering};

use peername_sys::Result;
use peername_sys::ipc::shared_memory::{create_anonymous, map_words};

/// The in-flight calls. Copies share the memory, in every process forked from here on.
#[derive(Clone, Copy, Debug)]
pub(super) struct InflightCalls(&'static [AtomicU64]);

/// A slot of the record.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InflightSlot(usize);

/// A call that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InflightCall {
    pub(super) id: u64,
    pub(super) tid: u32,
}

impl InflightCalls {
    /// Creates an empty record, in anonymous shared memory.
    ///
    /// # Errors
    ///
    /// Those of memfd_create(2) and mmap(2).
    pub(super) fn new() -> Result<Self> {
        let len = 2 * CAPACITY * size_of::<AtomicU64>();
        let memory = create_anonymous("peername-inflight", len)?;
        Ok(Self(map_words(&memory, len)?))
    }

    /// Records a call. `None` if there is no free slot: the call must be answered at once.
    pub(super) fn insert(self, call: InflightCall) -> Option<InflightSlot> {
        let (slots, _) = self.0.as_chunks::<2>();
        let free = slots
            .iter()
            .position(|[_, tid]| tid.load(Ordering::Relaxed) == NO_THREAD)?;
        let [id, tid] = slots.get(free)?;
        id.store(call.id, Ordering::Relaxed);
        // In this order: a slot that has a thread has the id of its call.
        tid.store(call.tid.into(), Ordering::Release);
        Some(InflightSlot(free))
    }

    /// Frees the slot of a call that was answered, or is over.
    pub(super) fn remove(self, slot: InflightSlot) {
        let (slots, _) = self.0.as_chunks::<2>();
        if let Some([_, tid]) = slots.get(slot.0) {
            tid.store(NO_THREAD, Ordering::Relaxed);
        }
    }

    /// All in-flight calls.
    pub(super) fn iter(self) -> impl Iterator<Item = InflightCall> {
        let (slots, _) = self.0.as_chunks::<2>();
        slots.iter().filter_map(|[id, tid]| {
            let tid = tid.load(Ordering::Acquire);
            let tid = u32::try_from(tid)
                .ok()
                .filter(|tid| u64::from(*tid) != NO_THREAD)?;
            let id = id.load(Ordering::Relaxed);
            Some(InflightCall { id, tid })
        })
    }
}

/// Slots: threads that wait in accept(2) at the same time, more than any server has. 64 KiB of memory.
const CAPACITY: usize = 4096;
const NO_THREAD: u64 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_a_full_record_returns_none() {
        let inflight = InflightCalls::new().unwrap();
        let open = |tid| InflightCall {
            id: 1000 + u64::from(tid),
            tid,
        };
        let mut slots: Vec<_> = (1..=CAPACITY as u32)
            .map(|tid| inflight.insert(open(tid)).unwrap())
            .collect();
        assert_eq!(inflight.insert(open(9999)), None);
        inflight.remove(slots.remove(7));
        assert_eq!(inflight.insert(open(9999)), Some(InflightSlot(7)));
        assert_eq!(inflight.iter().count(), CAPACITY);
        assert_eq!(inflight.iter().nth(7), Some(open(9999)));
    }
}
