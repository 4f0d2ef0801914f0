//! Which calls have been taken on and not been answered yet, in memory that outlives the supervisor.
//!
//! The kernel tells of a call once. If the supervisor dies, whoever has its listener next is never told
//! of the calls that it had taken on, and their threads would wait for ever. So their numbers stand
//! here, where the guardian finds them.

use std::sync::atomic::{AtomicU64, Ordering};

use peername_sys::Result;
use peername_sys::ipc::shared_memory::{create_anonymous, map_words};

/// The open calls. Copies are the same ledger, in every process forked from here on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ledger(&'static [AtomicU64]);

/// A line of the ledger.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line(usize);

/// A call that was taken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) id: u64,
    pub(super) tid: u32,
}

impl Ledger {
    pub(super) fn new() -> Result<Self> {
        let len = 2 * LINES * size_of::<AtomicU64>();
        let memory = create_anonymous("peername-ledger", len)?;
        Ok(Self(map_words(&memory, len)?))
    }

    /// Writes a call down. `None` when the ledger is full: the call must be answered at once.
    pub(super) fn open(self, call: Open) -> Option<Line> {
        let (lines, _) = self.0.as_chunks::<2>();
        let free = lines
            .iter()
            .position(|[_, tid]| tid.load(Ordering::Relaxed) == NOBODY)?;
        let [id, tid] = lines.get(free)?;
        id.store(call.id, Ordering::Relaxed);
        // In this order: a line that has a thread has the number of its call.
        tid.store(call.tid.into(), Ordering::Release);
        Some(Line(free))
    }

    /// It has been answered, or is over.
    pub(super) fn close(self, line: Line) {
        let (lines, _) = self.0.as_chunks::<2>();
        if let Some([_, tid]) = lines.get(line.0) {
            tid.store(NOBODY, Ordering::Relaxed);
        }
    }

    /// What is open.
    pub(super) fn all_open(self) -> impl Iterator<Item = Open> {
        let (lines, _) = self.0.as_chunks::<2>();
        lines.iter().filter_map(|[id, tid]| {
            let tid = tid.load(Ordering::Acquire);
            let tid = u32::try_from(tid)
                .ok()
                .filter(|tid| u64::from(*tid) != NOBODY)?;
            let id = id.load(Ordering::Relaxed);
            Some(Open { id, tid })
        })
    }
}

/// Threads that wait in accept(2) at the same time; more than any server has. 64 KiB of memory.
const LINES: usize = 4096;
const NOBODY: u64 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_used_again_and_a_full_ledger_says_so() {
        let ledger = Ledger::new().unwrap();
        let open = |tid| Open {
            id: 1000 + u64::from(tid),
            tid,
        };
        let mut lines: Vec<_> = (1..=LINES as u32)
            .map(|tid| ledger.open(open(tid)).unwrap())
            .collect();
        assert_eq!(ledger.open(open(9999)), None);
        ledger.close(lines.remove(7));
        assert_eq!(ledger.open(open(9999)), Some(Line(7)));
        assert_eq!(ledger.all_open().count(), LINES);
        assert_eq!(ledger.all_open().nth(7), Some(open(9999)));
    }
}
