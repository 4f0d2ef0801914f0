//! The record of in-flight calls, which were received and not answered yet, in memory that outlives the supervisor.
//!
//! The kernel reports a call once. If the supervisor dies, the next holder of the listener does not receive the calls that
//! were received before, and their threads would wait for ever. So the calls are recorded here: the monitor ends their
//! processes, and the next supervisor of a container answers them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use peername_sys::ipc::shared_memory::{self, create_anonymous, map_words};
use peername_sys::seccomp::{Notification, NotificationListener, NotificationRecord};
use peername_sys::{Errno, NameCall, Result};

/// The source of the calls, and the record of those that wait for an answer.
#[derive(Debug)]
pub(super) struct SupervisedCalls {
    pub(super) calls: NotificationListener,
    pub(super) inflight: InflightCalls,
}

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
    pub(super) fn new() -> Result<Self> {
        Self::map(Self::create_memory()?)
    }

    /// The memory of an empty record, as a file.
    pub(crate) fn create_memory() -> Result<OwnedFd> {
        create_anonymous("peername-inflight", SIZE)
    }

    /// Maps the record in this memory, which [`InflightCalls::create_memory`] has made.
    fn map(memory: impl AsFd) -> Result<Self> {
        map_words(memory, SIZE).map(Self)
    }

    /// Maps the record of a container for this process alone: waits until no other supervisor has it.
    ///
    /// # Errors
    ///
    /// An error of open(2), flock(2) or mmap(2), or the record is of another version.
    pub(crate) fn lock(memory: impl AsFd) -> Result<Self> {
        let locked = shared_memory::lock_anonymous(memory)?;
        if locked.metadata().call("fstat(2)")?.len() != SIZE as u64 {
            let other = io::Error::other("it is of another version of peername");
            return Err(other).call("opening the record of calls");
        }
        // The mapping keeps the lock.
        Self::map(locked)
    }

    /// Receives the next call, directly into a free slot, so that no call is lost if the supervisor is killed. `None` if the
    /// call is over already, or has failed because it got the last slot.
    pub(crate) fn receive(self, calls: &NotificationListener) -> Option<InflightCall> {
        let (index, record) = self
            .slots()
            .enumerate()
            .find(|(_, record)| Notification::is_empty(record))?;
        let Ok(call) = calls.receive_into(record) else {
            Notification::clear(record);
            return None;
        };
        let received = InflightCall {
            slot: InflightSlot(index),
            call,
        };
        (!self.fail_in_last_slot(&received, calls)).then_some(received)
    }

    /// Fails a call with ENOMEM if it is in the last slot, which must become free for the next call. Returns whether it is.
    pub(super) fn fail_in_last_slot(
        self,
        call: &InflightCall,
        calls: &NotificationListener,
    ) -> bool {
        let InflightCall { slot, call } = call;
        let is_last = slot.0 == CAPACITY;
        if is_last {
            calls.fail(call.id, &Errno::NOMEM.into());
            self.remove(slot);
        }
        is_last
    }

    /// Frees the slot of a call that was answered or is over.
    pub(super) fn remove(self, slot: &InflightSlot) {
        if let Some(record) = self.slots().nth(slot.0) {
            Notification::clear(record);
        }
    }

    /// All in-flight calls.
    pub(crate) fn iter(self) -> impl Iterator<Item = InflightCall> {
        self.slots().enumerate().filter_map(|(index, record)| {
            Some(InflightCall {
                slot: InflightSlot(index),
                call: Notification::from_record(record)?,
            })
        })
    }

    fn slots(self) -> impl Iterator<Item = &'static NotificationRecord> {
        let (slots, _) = self.0.as_chunks::<SLOT_WORDS>();
        slots.iter().filter_map(|slot| slot.first_chunk())
    }
}

/// The words of a slot: a power of two, so that no record lies in two pages, of which the kernel could write one only.
const SLOT_WORDS: usize = Notification::WORDS.next_power_of_two();
/// Slots for threads that wait in accept(2) at the same time, more than any server has. One more slot is for a call beyond
/// them.
const CAPACITY: usize = 4096;
const SIZE: usize = (CAPACITY + 1) * SLOT_WORDS * size_of::<u64>();

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn put(record: &NotificationRecord, id: u64) {
        for (word, value) in record.iter().zip([id, 1, 1 << 32]) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[test]
    fn slot_is_free_once_its_call_is_removed() {
        let inflight = InflightCalls::new().unwrap();
        let record = inflight.slots().nth(7).unwrap();
        put(record, 1000);
        let found: Vec<_> = inflight.iter().collect();
        let [InflightCall { slot, call }] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!((slot, call.id), (&InflightSlot(7), 1000));
        inflight.remove(slot);
        assert_eq!(inflight.iter().count(), 0);
        let words = record.each_ref().map(|word| word.load(Ordering::Relaxed));
        assert_eq!(words, [0; Notification::WORDS]);
    }

    /// The descriptor is no seccomp listener, so answers have no effect.
    #[test]
    fn call_beyond_the_capacity_is_answered_at_once() {
        let inflight = InflightCalls::new().unwrap();
        let calls = NotificationListener::from(InflightCalls::create_memory().unwrap());
        inflight.slots().for_each(|record| put(record, 1000));
        let waiting = inflight
            .iter()
            .filter(|call| !inflight.fail_in_last_slot(call, &calls));
        assert_eq!(waiting.count(), CAPACITY);
        assert_eq!(inflight.iter().count(), CAPACITY);
    }
}
