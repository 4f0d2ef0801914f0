//! The identity table, lock-free: open addressing within a window of slots, and each slot a seqlock.
//!
//! A writer claims a free slot by swapping its key from 0 to BUSY, writes the value (after a release fence), and then
//! stores the key (release). A reader that finds the key (acquire) reads the value and, after an acquire fence, rereads the
//! key: if the key has changed, the slot was freed meanwhile, and the value is not used. The two fences are those of a
//! seqlock: H.-J. Boehm, "Can Seqlocks Get Along With Programming Language Memory Models?" (MSPC 2012). A process that dies
//! between the two stores leaves the slot BUSY for ever: one slot is lost, and nothing waits for it.
//!
//! A writer that has stored its key looks for the same key in another slot (after a fence that orders both), and frees its
//! own slot if there is one: of two writers with one key, at least one sees the other.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::layout::{self, Parts, VALUE_WORDS, WINDOW};
use crate::network::{from_bits, join, split, to_bits};
use crate::settings::{Counter, Settings};
use crate::socket_key::{SocketKey, SocketQueries};

/// The true client of a connection, and its destination, as the header names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The client that the header names.
    pub client: SocketAddr,
    /// The destination that the header names.
    pub destination: SocketAddr,
    /// The network namespace in which a sweep finds the socket (SO_NETNS_COOKIE); 0 if it is unknown: such an entry is never
    /// freed.
    pub namespace: u64,
}

/// A table in memory that the caller has mapped.
#[derive(Clone, Copy, Debug)]
pub struct Table<'m>(Parts<'m>);

/// A reason for which a client can't be stored. The connection must be refused, since its client could not be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// There is no free slot in the socket's window.
    Full,
    /// Another socket with this key is in the table: a closed one that was not swept yet, or the kernel gave two open sockets
    /// the same number.
    KeyInUse,
    /// The socket has no key.
    NoKey,
}

impl NotStored {
    /// The counter of connections that are refused for this reason.
    pub fn counter(self) -> Counter {
        match self {
            Self::Full => Counter::Full,
            Self::KeyInUse => Counter::KeyInUse,
            Self::NoKey => Counter::NoKey,
        }
    }
}

/// A slot that was occupied when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OccupiedSlot {
    /// The socket.
    pub key: SocketKey,
    /// See [`Identity::namespace`].
    pub namespace: u64,
    index: usize,
}

impl<'m> Table<'m> {
    /// The size in bytes of a table with `slots` slots, a power of two and at least 64.
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
        table.settings().are_of_this_version().then_some(table)
    }

    /// Opens a table whose settings the caller will write: one that has clients already, or memory that is all zero. `None` if
    /// the memory is no table, or a table of another version.
    pub fn adopt(words: &'m [AtomicU64]) -> Option<Self> {
        let table = Self::new(words)?;
        let settings = table.settings();
        (settings.are_of_this_version() || settings.are_unwritten()).then_some(table)
    }

    /// The table's settings and counters.
    pub fn settings(self) -> Settings<'m> {
        Settings(self.0)
    }

    /// The number of slots.
    pub fn slots(self) -> usize {
        self.0.keys.len()
    }

    /// Stores the identity of a connection. `peer` is the real one, and `multipath` whether it is an MPTCP socket.
    ///
    /// # Errors
    ///
    /// [`NotStored`]: the connection must be refused.
    pub fn store(
        self,
        socket: &impl SocketQueries,
        multipath: bool,
        peer: SocketAddr,
        identity: &Identity,
    ) -> Result<(), NotStored> {
        let key = self.settings().listing().key(socket, multipath);
        if multipath {
            self.settings().multipath_flag().store(1, Ordering::Release);
        }
        self.insert(key.ok_or(NotStored::NoKey)?, peer, identity)
    }

    /// Looks up the identity of this socket's peer, if its header named one. `peer` is the real one; `None` for a connection
    /// that was reset, because it has no peer any more.
    pub fn look_up(
        self,
        socket: &impl SocketQueries,
        peer: Option<SocketAddr>,
    ) -> Option<Identity> {
        let settings = self.settings();
        let find = |multipath| {
            let key = settings.listing().key(socket, multipath)?;
            self.find(key, peer)
        };
        find(false).or_else(|| {
            let any_multipath = settings.multipath_flag().load(Ordering::Acquire) != 0;
            if any_multipath && socket.is_multipath() {
                find(true)
            } else {
                None
            }
        })
    }

    /// Inserts an identity under this key.
    pub(crate) fn insert(
        self,
        key: SocketKey,
        peer: SocketAddr,
        identity: &Identity,
    ) -> Result<(), NotStored> {
        let claimed = self.window(key).find(|(_, slot, _)| {
            slot.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        });
        let (index, slot, value) = claimed.ok_or(NotStored::Full)?;
        // Pairs with the acquire fence in `find`: a reader that has loaded a word of the new value no longer finds the old
        // key when it rereads. The acquire above orders only the load of the swap: without this fence the value could
        // become visible before BUSY does.
        fence(Ordering::Release);
        // A sweep that is in progress, or begins now, may list the sockets before the key is stored. This number keeps both
        // from freeing the slot.
        let sweep = self.settings().sweep_number().load(Ordering::Relaxed);
        identity.store(value, digest(peer), sweep.saturating_add(1));
        slot.store(key.word(), Ordering::Release);
        self.settings().used_word().fetch_add(1, Ordering::Relaxed);
        // Orders the store above before the loads below, in both of two writers with one key.
        fence(Ordering::SeqCst);
        if !self.is_in_other_slot(key, index) {
            return Ok(());
        }
        self.remove(OccupiedSlot {
            key,
            namespace: identity.namespace,
            index,
        });
        Err(NotStored::KeyInUse)
    }

    /// Whether a slot other than the one at `index` has the key.
    fn is_in_other_slot(self, key: SocketKey, index: usize) -> bool {
        self.window(key)
            .any(|(other, slot, _)| other != index && slot.load(Ordering::Relaxed) == key.word())
    }

    fn find(self, key: SocketKey, peer: Option<SocketAddr>) -> Option<Identity> {
        let peer = peer.map(digest);
        self.window(key).find_map(|(_, slot, value)| {
            let has_key = |order| slot.load(order) == key.word();
            let (identity, stored_peer) =
                has_key(Ordering::Acquire).then(|| Identity::load(value))?;
            fence(Ordering::Acquire);
            let is_peer = peer.is_none_or(|peer| peer == stored_peer);
            (has_key(Ordering::Relaxed) && is_peer).then_some(identity)
        })
    }

    /// Lists the occupied slots, for a sweep: list first these, then the kernel's sockets, and then [`Table::remove`] the slots
    /// of sockets that the kernel does not list. In this order an entry that is inserted meanwhile is not removed.
    pub fn occupied_slots(self) -> impl Iterator<Item = OccupiedSlot> {
        let slots = self.0.keys.iter().zip(self.0.values).enumerate();
        slots.filter_map(|(index, (key, value))| Self::occupied(index, key, value))
    }

    /// Whether a sweep is needed before this socket's client can be stored: its window has no free slot. A key that is in the
    /// table already is no reason for one: the kernel lists this socket under the key, so the sweep would not free the slot.
    pub fn needs_sweep_for(self, key: SocketKey) -> bool {
        !self
            .window(key)
            .any(|(_, slot, _)| slot.load(Ordering::Relaxed) == FREE)
    }

    /// Begins a mark-and-sweep that needs no memory of its own: [`Table::mark`] each socket that the kernel lists, then
    /// [`Table::remove_unmarked`]. Several may be in progress at once.
    pub fn begin_sweep(self) -> u64 {
        let previous = self
            .settings()
            .sweep_number()
            .fetch_add(1, Ordering::Relaxed);
        previous.saturating_add(1)
    }

    /// Marks this socket as open, if it is in the table.
    pub fn mark(self, key: SocketKey, sweep: u64) {
        let mut window = self.window(key);
        let found = window.find(|(_, slot, _)| slot.load(Ordering::Acquire) == key.word());
        if let Some((_, _, [.., marked])) = found {
            marked.fetch_max(sweep, Ordering::Relaxed);
        }
    }

    /// Frees the slots of this namespace that this sweep has not marked. Slots occupied since the previous sweep began are
    /// spared.
    pub fn remove_unmarked(self, sweep: u64, namespace: u64) {
        let slots = self.0.keys.iter().zip(self.0.values).enumerate();
        for (index, (key, value)) in slots {
            let [.., marked] = value;
            if let Some(slot) = Self::occupied(index, key, value)
                && slot.namespace == namespace
                && marked.load(Ordering::Relaxed) < sweep
            {
                self.remove(slot);
            }
        }
    }

    /// Frees a slot, unless it belongs to another socket by now.
    pub fn remove(self, slot: OccupiedSlot) {
        let Some(key) = self.0.keys.get(slot.index) else {
            return;
        };
        let word = slot.key.word();
        let freed = key.compare_exchange(word, FREE, Ordering::Release, Ordering::Relaxed);
        if freed.is_ok() {
            self.settings().used_word().fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn occupied(
        index: usize,
        key: &AtomicU64,
        value: &[AtomicU64; VALUE_WORDS],
    ) -> Option<OccupiedSlot> {
        let word = key.load(Ordering::Acquire);
        let [.., namespace, _peer, _marked] = value;
        let key = SocketKey::from_word(word).filter(|_| word != BUSY)?;
        Some(OccupiedSlot {
            key,
            namespace: namespace.load(Ordering::Relaxed),
            index,
        })
    }

    /// The slots that may have this key, from its home slot on.
    fn window(
        self,
        key: SocketKey,
    ) -> impl Iterator<Item = (usize, &'m AtomicU64, &'m [AtomicU64; VALUE_WORDS])> + Clone {
        let Parts { keys, values, .. } = self.0;
        let mask = keys.len().saturating_sub(1);
        // Keys are consecutive numbers, in batches per processor: hashing spreads them over the table.
        let home = usize::try_from(mix(key.word()) >> 32).unwrap_or(0);
        (0..WINDOW).filter_map(move |step| {
            let index = home.wrapping_add(step) & mask;
            Some((index, keys.get(index)?, values.get(index)?))
        })
    }
}

impl Identity {
    fn store(&self, value: &[AtomicU64; VALUE_WORDS], peer_digest: u64, sweep: u64) {
        let mut words = [0; VALUE_WORDS];
        let ends = [self.client, self.destination];
        let (pairs, _) = words.as_chunks_mut::<2>();
        for (pair, end) in pairs.iter_mut().zip(ends) {
            *pair = split(to_bits(end.ip())).into();
        }
        let [_, _, _, _, ports, namespace, peer, marked] = &mut words;
        *peer = peer_digest;
        *marked = sweep;
        *ports = ends
            .iter()
            .fold(0, |ports, end| ports << 16 | u64::from(end.port()));
        *namespace = self.namespace;
        for (to, word) in value.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Loads an identity, and the digest of its real peer.
    fn load(value: &[AtomicU64; VALUE_WORDS]) -> (Self, u64) {
        let [
            client_high,
            client_low,
            destination_high,
            destination_low,
            ports,
            namespace,
            peer_digest,
            _marked,
        ] = value.each_ref().map(|word| word.load(Ordering::Relaxed));
        let end = |high, low, shift: u32| {
            let port = u16::try_from((ports >> shift) & 0xffff).unwrap_or_default();
            SocketAddr::new(from_bits(join(high, low)), port)
        };
        let identity = Self {
            client: end(client_high, client_low, 16),
            destination: end(destination_high, destination_low, 0),
            namespace,
        };
        (identity, peer_digest)
    }
}

/// A digest of a peer. Peers with different ports of the same address never have the same digest, other peers almost never.
fn digest(peer: SocketAddr) -> u64 {
    let (high, low) = split(to_bits(peer.ip()));
    mix(mix(high) ^ low) ^ u64::from(peer.port())
}

/// Fibonacci hashing: multiplies by 2^64 divided by the golden ratio.
fn mix(word: u64) -> u64 {
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

const FREE: u64 = 0;
/// The key of a slot that is being written. No socket has this key.
const BUSY: u64 = u64::MAX;

#[cfg(test)]
mod tests;
