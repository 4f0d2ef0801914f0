//! The identity table, lock-free: open addressing within a window of slots, and each slot a seqlock.
//!
//! A writer claims a free slot by swapping its key from 0 to BUSY, writes the value (after a release fence),
//! and then stores the cookie (release). A reader that finds the cookie (acquire) reads the value and, after
//! an acquire fence, rereads the key: if it has changed, the slot was freed meanwhile, and the value is
//! not used. The two fences are those of a seqlock: H.-J. Boehm, "Can Seqlocks Get Along With
//! Programming Language Memory Models?" (MSPC 2012). A process that dies between the two stores leaves the
//! slot BUSY for ever: one slot is lost, nothing waits for it.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::layout::{self, Parts, VALUE, WINDOW};
use crate::network::{from_bits, join, split, to_bits};
use crate::settings::Settings;

/// The true client of a connection, and its destination, as the header names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The client that the header names.
    pub client: SocketAddr,
    /// The destination that the header names.
    pub destination: SocketAddr,
    /// The network namespace in which a sweep finds the socket (SO_NETNS_COOKIE); 0 if none can: such an entry is never
    /// freed.
    pub namespace: u64,
}

/// A table in memory that the caller has mapped.
#[derive(Clone, Copy, Debug)]
pub struct Table<'m>(Parts<'m>);

/// There is no free slot in the socket's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A slot that was occupied when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OccupiedSlot {
    /// The socket.
    pub cookie: u64,
    /// See [`Identity::namespace`].
    pub namespace: u64,
    index: usize,
}

impl<'m> Table<'m> {
    /// The size in bytes of a table with so many slots, a power of two and at least 64.
    pub const fn size(slots: usize) -> usize {
        layout::words(slots).saturating_mul(8)
    }

    /// Creates a table in memory that is all zero. Write its settings before it is shared. `None` if the memory does not
    /// have the size of a table.
    pub fn new(words: &'m [AtomicU64]) -> Option<Self> {
        Parts::new(words).map(Self)
    }

    /// Opens a table that another process has created. `None` if the memory is no table, or a table of another version.
    pub fn open(words: &'m [AtomicU64]) -> Option<Self> {
        let table = Self::new(words)?;
        table.settings().are_ours().then_some(table)
    }

    /// The table's settings and counters.
    pub fn settings(self) -> Settings<'m> {
        Settings(self.0)
    }

    /// The number of slots.
    pub fn slots(self) -> usize {
        self.0.keys.len()
    }

    /// Stores the identity of a socket's peer. The socket must not be in the table.
    ///
    /// # Errors
    ///
    /// [`Full`]: the connection must then be refused, since its client can't be shown.
    pub fn insert(self, cookie: u64, identity: &Identity) -> Result<(), Full> {
        let claimed = self.window(cookie).find(|(_, key, _)| {
            key.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        });
        let (_, key, value) = claimed.ok_or(Full)?;
        // Pairs with the acquire fence in `find`: a reader that loads a word of the new value then finds the old key
        // gone. The acquire above orders only the load of the swap: without this fence the value could become visible
        // before BUSY does.
        fence(Ordering::Release);
        // A sweep that is in progress, or begins now, may list the sockets before the key is stored. The number
        // stored here keeps both from freeing the slot.
        let sweep = self.settings().sweep().load(Ordering::Relaxed);
        identity.store(value, sweep.saturating_add(1));
        key.store(cookie, Ordering::Release);
        self.settings().used_word().fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Looks up the identity of this socket's peer, if its header named one.
    pub fn find(self, cookie: u64) -> Option<Identity> {
        let (_, key, value) = self
            .window(cookie)
            .find(|(_, key, _)| key.load(Ordering::Acquire) == cookie)?;
        let identity = Identity::load(value);
        fence(Ordering::Acquire);
        (key.load(Ordering::Relaxed) == cookie).then_some(identity)
    }

    /// Lists the occupied slots, for a sweep: first list these, then the kernel's sockets, then [`Table::remove`] those that
    /// the kernel does not list. In this order an entry that is inserted meanwhile is not removed.
    pub fn occupied_slots(self) -> impl Iterator<Item = OccupiedSlot> {
        let slots = self.0.keys.iter().zip(self.0.values).enumerate();
        slots.filter_map(|(index, (key, value))| Self::occupied(index, key, value))
    }

    /// Whether the window of this socket has no free slot, so that [`Table::insert`] would fail.
    pub fn is_full_near(self, cookie: u64) -> bool {
        !self
            .window(cookie)
            .any(|(_, key, _)| key.load(Ordering::Relaxed) == FREE)
    }

    /// Begins a mark-and-sweep that needs no memory of its own: [`Table::mark`] each socket that the kernel lists, then
    /// [`Table::remove_unmarked`]. Several may be in progress at once.
    pub fn begin_sweep(self) -> u64 {
        let before = self.settings().sweep().fetch_add(1, Ordering::Relaxed);
        before.saturating_add(1)
    }

    /// Marks this socket as open, if it is in the table.
    pub fn mark(self, cookie: u64, sweep: u64) {
        let mut window = self.window(cookie);
        let found = window.find(|(_, key, _)| key.load(Ordering::Acquire) == cookie);
        if let Some((_, _, [.., seen])) = found {
            seen.fetch_max(sweep, Ordering::Relaxed);
        }
    }

    /// Frees the slots of this namespace that were occupied before the previous sweep began, and were not marked since.
    pub fn remove_unmarked(self, sweep: u64, namespace: u64) {
        let slots = self.0.keys.iter().zip(self.0.values).enumerate();
        for (index, (key, value)) in slots {
            let [.., seen] = value;
            let slot = Self::occupied(index, key, value);
            let slot = slot.filter(|slot| slot.namespace == namespace);
            if let Some(slot) = slot.filter(|_| seen.load(Ordering::Relaxed) < sweep) {
                self.remove(slot);
            }
        }
    }

    /// Frees a slot, unless it belongs to another socket by now.
    pub fn remove(self, slot: OccupiedSlot) {
        let Some(key) = self.0.keys.get(slot.index) else {
            return;
        };
        let freed = key.compare_exchange(slot.cookie, FREE, Ordering::Release, Ordering::Relaxed);
        if freed.is_ok() {
            self.settings().used_word().fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn occupied(index: usize, key: &AtomicU64, value: &[AtomicU64; VALUE]) -> Option<OccupiedSlot> {
        let cookie = key.load(Ordering::Acquire);
        let [.., namespace, _spare, _seen] = value;
        let taken = cookie != FREE && cookie != BUSY;
        taken.then(|| OccupiedSlot {
            cookie,
            namespace: namespace.load(Ordering::Relaxed),
            index,
        })
    }

    /// The slots where a socket may be, from its home slot on.
    fn window(
        self,
        cookie: u64,
    ) -> impl Iterator<Item = (usize, &'m AtomicU64, &'m [AtomicU64; VALUE])> {
        let Parts { keys, values, .. } = self.0;
        let mask = keys.len().saturating_sub(1);
        // Fibonacci hashing: cookies are consecutive numbers, per processor in batches.
        let home = usize::try_from(cookie.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).unwrap_or(0);
        (0..WINDOW).filter_map(move |step| {
            let index = home.wrapping_add(step) & mask;
            Some((index, keys.get(index)?, values.get(index)?))
        })
    }
}

impl Identity {
    fn store(&self, value: &[AtomicU64; VALUE], sweep: u64) {
        let mut words = [0; VALUE];
        let ends = [self.client, self.destination];
        let (pairs, _) = words.as_chunks_mut::<2>();
        for (pair, end) in pairs.iter_mut().zip(ends) {
            *pair = split(to_bits(end.ip())).into();
        }
        let [_, _, _, _, ports, namespace, _spare, seen] = &mut words;
        *seen = sweep;
        *ports = ends
            .iter()
            .fold(0, |ports, end| ports << 16 | u64::from(end.port()));
        *namespace = self.namespace;
        for (to, word) in value.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    fn load(value: &[AtomicU64; VALUE]) -> Self {
        let [a, b, c, d, ports, namespace, _spare, _seen] =
            value.each_ref().map(|word| word.load(Ordering::Relaxed));
        let end = |high, low, shift: u32| {
            let port = u16::try_from((ports >> shift) & 0xffff).unwrap_or_default();
            SocketAddr::new(from_bits(join(high, low)), port)
        };
        Self {
            client: end(a, b, 16),
            destination: end(c, d, 0),
            namespace,
        }
    }
}

const FREE: u64 = 0;
/// The key of a slot that is being written. It is no socket's cookie: those count up from 1.
const BUSY: u64 = u64::MAX;

#[cfg(test)]
mod tests;
