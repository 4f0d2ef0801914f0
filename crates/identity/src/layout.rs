//! The memory layout of the table.
//!
//! ```text
//! settings   FIXED_WORDS words, ports, the sets of wake-up ports, networks, refusals, stand-ins
//! keys       one word per slot: 0 free, BUSY while written, else the socket's key ([`crate::SocketKey`])
//! values     VALUE_WORDS words per slot
//! ```
//!
//! The keys are contiguous, so that an unsuccessful lookup reads a few cache lines and not one per slot.

use core::sync::atomic::AtomicU64;

use crate::port_set::PortSet;

/// The parts of the table, as slices of its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<'m> {
    pub(crate) fixed: &'m [AtomicU64; FIXED_WORDS],
    pub(crate) ports: &'m [AtomicU64; PortSet::WORDS],
    pub(crate) loopback_v4_wakeup_ports: &'m [AtomicU64; PortSet::WORDS],
    pub(crate) loopback_v6_wakeup_ports: &'m [AtomicU64; PortSet::WORDS],
    pub(crate) own_wakeup_ports: &'m [AtomicU64; PortSet::WORDS],
    pub(crate) networks: &'m [[AtomicU64; NETWORK_WORDS]],
    pub(crate) refusals: &'m [[AtomicU64; REFUSAL_WORDS]],
    pub(crate) stand_ins: &'m [[AtomicU64; STAND_IN_WAYS]],
    pub(crate) keys: &'m [AtomicU64],
    pub(crate) values: &'m [[AtomicU64; VALUE_WORDS]],
}

impl<'m> Parts<'m> {
    /// `None` if the memory does not have the size of a table, or the number of slots is not a power of two.
    pub(crate) fn new(words: &'m [AtomicU64]) -> Option<Self> {
        let (settings, rest) = words.split_at_checked(SETTINGS_WORDS)?;
        let (fixed, settings) = settings.split_first_chunk()?;
        let (ports, settings) = settings.split_first_chunk()?;
        let (loopback_v4_wakeup_ports, settings) = settings.split_first_chunk()?;
        let (loopback_v6_wakeup_ports, settings) = settings.split_first_chunk()?;
        let (own_wakeup_ports, settings) = settings.split_first_chunk()?;
        let (networks, settings) = settings.split_at_checked(NETWORK_WORDS * MAX_NETWORKS)?;
        let (refusals, stand_ins) = settings.split_last_chunk::<MAX_STAND_INS>()?;
        let (stand_ins, _) = stand_ins.as_chunks();
        let (networks, _) = networks.as_chunks();
        let (refusals, _) = refusals.as_chunks();
        let slots = rest.len().checked_div(SLOT_WORDS)?;
        let (keys, values) = rest.split_at_checked(slots)?;
        let (values, remainder) = values.as_chunks();
        let fits = slots.is_power_of_two() && slots >= WINDOW && remainder.is_empty();
        fits.then_some(Self {
            fixed,
            ports,
            loopback_v4_wakeup_ports,
            loopback_v6_wakeup_ports,
            own_wakeup_ports,
            networks,
            refusals,
            stand_ins,
            keys,
            values,
        })
    }
}

/// The number of words of a table with `slots` slots.
pub(crate) const fn words(slots: usize) -> usize {
    SETTINGS_WORDS.saturating_add(slots.saturating_mul(SLOT_WORDS))
}

/// Words of the fixed part: the settings, counters and gauges that are single words.
pub(crate) const FIXED_WORDS: usize = 48;
/// Words of a slot's value: client, destination, their ports, the namespace, the real peer's digest, and the last sweep that
/// found the socket open. One cache line, so that no value spans two.
pub(crate) const VALUE_WORDS: usize = 8;
/// Slots of the probe window: how far a key may be from its home slot. A larger window would let the table get fuller
/// before an insert is refused, and make every unsuccessful lookup slower.
pub(crate) const WINDOW: usize = 64;
/// Maximum number of trusted networks.
pub(crate) const MAX_NETWORKS: usize = 1024;
/// Words of a trusted network: its address, and the length of its prefix.
pub(crate) const NETWORK_WORDS: usize = 3;
/// Words of a refusal.
pub(crate) const REFUSAL_WORDS: usize = 4;
/// Records of the ring of refusals: a power of two, as the number of a refusal is masked to get its index.
pub(crate) const MAX_REFUSALS: usize = 256;
/// The /64s of IPv6 clients whose stand-ins were recorded for the log.
pub(crate) const MAX_STAND_INS: usize = 1024;
/// The words in which a /64 may be: its stand-in selects them. So two clients whose stand-ins select the same words do not evict
/// each other each time.
pub(crate) const STAND_IN_WAYS: usize = 4;
const SETTINGS_WORDS: usize = FIXED_WORDS
    + 4 * PortSet::WORDS
    + NETWORK_WORDS * MAX_NETWORKS
    + MAX_REFUSALS * REFUSAL_WORDS
    + MAX_STAND_INS;
const SLOT_WORDS: usize = 1 + VALUE_WORDS;
