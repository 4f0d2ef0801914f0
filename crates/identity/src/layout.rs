//! The memory layout of the table.
//!
//! ```text
//! settings   FIXED words, ports, wake-up ports, networks, refusals
//! keys       one word a slot: 0 free, BUSY while written, else the socket's key ([`crate::SocketKey`])
//! values     VALUE words a slot
//! ```
//!
//! The keys are contiguous, so that an unsuccessful lookup reads a few cache lines and not one a slot.

use core::sync::atomic::AtomicU64;

use crate::port_set::PortSet;

/// The parts of the table, as slices of its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<'m> {
    pub(crate) fixed: &'m [AtomicU64; FIXED],
    pub(crate) ports: &'m [AtomicU64; PortSet::WORDS],
    pub(crate) wakeup_ports: &'m [AtomicU64; PortSet::WORDS],
    pub(crate) networks: &'m [[AtomicU64; 3]],
    pub(crate) refusals: &'m [[AtomicU64; RECORD]],
    pub(crate) keys: &'m [AtomicU64],
    pub(crate) values: &'m [[AtomicU64; VALUE]],
}

impl<'m> Parts<'m> {
    /// `None` if the memory does not have the size of a table, or the number of slots is not a power of two.
    pub(crate) fn new(words: &'m [AtomicU64]) -> Option<Self> {
        let (settings, rest) = words.split_at_checked(SETTINGS)?;
        let (fixed, settings) = settings.split_first_chunk()?;
        let (ports, settings) = settings.split_first_chunk()?;
        let (wakeup_ports, settings) = settings.split_first_chunk()?;
        let (networks, refusals) = settings.split_at_checked(3 * NETWORKS)?;
        let (networks, _) = networks.as_chunks();
        let (refusals, _) = refusals.as_chunks();
        let slots = rest.len().checked_div(SLOT)?;
        let (keys, values) = rest.split_at_checked(slots)?;
        let (values, left) = values.as_chunks();
        let fits = slots.is_power_of_two() && slots >= WINDOW && left.is_empty();
        fits.then_some(Self {
            fixed,
            ports,
            wakeup_ports,
            networks,
            refusals,
            keys,
            values,
        })
    }
}

/// The number of words of a table with so many slots.
pub(crate) const fn words(slots: usize) -> usize {
    SETTINGS.saturating_add(slots.saturating_mul(SLOT))
}

/// Words reserved for the settings' single words.
pub(crate) const FIXED: usize = 48;
/// Words of a slot's value: client, destination, their ports, the namespace, the real peer's digest, and the last sweep that
/// found the socket open. One cache line, so that no value spans two.
pub(crate) const VALUE: usize = 8;
/// Slots of the probe window: how far a key may be from its home slot. A larger window would let the table get fuller
/// before it refuses, and make every lookup of a socket that is not in it slower.
pub(crate) const WINDOW: usize = 64;
/// Maximum number of trusted networks.
pub(crate) const NETWORKS: usize = 1024;
/// Words of a refusal.
pub(crate) const RECORD: usize = 4;
/// Records of the ring of refusals, which are kept until they are read: a power of two.
pub(crate) const RECORDS: usize = 256;
const SETTINGS: usize = FIXED + 2 * PortSet::WORDS + 3 * NETWORKS + RECORDS * RECORD;
const SLOT: usize = 1 + VALUE;
