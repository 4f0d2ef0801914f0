//! Sets of ports, one bit each.

use core::sync::atomic::{AtomicU64, Ordering};

/// A set of ports that threads and processes share.
#[derive(Clone, Copy, Debug)]
pub struct PortSet<'m>(&'m [AtomicU64; PortSet::WORDS]);

impl PortSet<'_> {
    /// Words of a set: one bit per port.
    pub const WORDS: usize = 65_536 / 64;
}

impl<'m> PortSet<'m> {
    /// Wraps these words as a set: empty if all are zero.
    pub const fn new(words: &'m [AtomicU64; PortSet::WORDS]) -> Self {
        Self(words)
    }

    /// Whether the port is in the set.
    pub fn contains(self, port: u16) -> bool {
        let (word, bit) = self.word_and_bit(port);
        word.is_some_and(|word| word.load(Ordering::Acquire) & bit != 0)
    }

    /// Adds the port. Returns whether it was not in the set before.
    pub fn insert(self, port: u16) -> bool {
        let (word, bit) = self.word_and_bit(port);
        word.is_some_and(|word| word.fetch_or(bit, Ordering::Release) & bit == 0)
    }

    /// Removes the port.
    pub fn remove(self, port: u16) {
        if let (Some(word), bit) = self.word_and_bit(port) {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Removes every port.
    pub fn clear(self) {
        self.0
            .iter()
            .for_each(|word| word.store(0, Ordering::Release));
    }

    fn word_and_bit(self, port: u16) -> (Option<&'m AtomicU64>, u64) {
        (self.0.get(usize::from(port >> 6)), 1 << (port & 63))
    }
}
