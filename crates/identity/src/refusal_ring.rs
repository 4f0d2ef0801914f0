//! A ring of the latest refusals, which every process writes and the supervisor logs.
//!
//! The library must not write to its program's standard error, and can't apply a rate limit over all processes. So it
//! writes a record here, and wakes the supervisor unless a wake-up is pending already.
//!
//! Each record is a seqlock, as each slot of the table is ([`crate::table`]).

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::gauge::RefusalVerbosity;
use crate::layout::{MAX_REFUSALS, MAX_STAND_INS, REFUSAL_WORDS, STAND_IN_WAYS};
use crate::network::{from_bits, join, split, to_bits};
use crate::settings::{Counter, Settings};
use crate::socket_family::pseudo_v4;

/// A refused connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: Counter,
    /// The peer's real address: the balancer's, if the connection came from one. The client's address, if the client was
    /// refused ([`Counter::is_client_refusal`]), or is shown by a stand-in ([`Counter::Accepted`]).
    pub peer: SocketAddr,
    /// The listener's port.
    pub port: u16,
}

/// The reader's position in the ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefusalReader {
    next: u64,
    /// Whether the record at `next` was unfinished at the last read.
    stalled: bool,
}

impl<'m> Settings<'m> {
    /// Counts a refusal and records it for the reader. Returns whether the reader must be woken.
    pub fn record_refusal(self, refusal: Refusal) -> bool {
        self.count(refusal.reason);
        self.record(refusal)
    }

    /// Records for the log that the program's IPv4 socket shows an IPv6 client by its stand-in ([`pseudo_v4`]): the first time
    /// for the client's /64, or each time if each refusal is logged. Of more than a thousand /64s, some are recorded again.
    /// `peer` is the real one, and `port` is called for the listener's port. The record is one of
    /// [`Counter::Accepted`]. Returns whether the reader must be woken.
    pub fn record_stand_in(
        self,
        peer: SocketAddr,
        client: SocketAddr,
        port: impl FnOnce() -> u16,
    ) -> bool {
        let verbosity = self.refusal_verbosity();
        let IpAddr::V6(ip) = client.ip().to_canonical() else {
            return false;
        };
        if verbosity == RefusalVerbosity::Off || peer.is_ipv6() {
            return false;
        }
        let is_new = self.add_stand_in(ip);
        if !is_new && verbosity == RefusalVerbosity::Throttled {
            return false;
        }
        self.record(Refusal {
            reason: Counter::Accepted,
            peer: client,
            port: port(),
        })
    }

    /// Adds the client's /64 to those whose stand-ins were recorded. Returns `false` if it is one of them. Two /64s may have the
    /// same stand-in, and each has to be logged.
    fn add_stand_in(self, client: Ipv6Addr) -> bool {
        let network = network_word(client);
        let ways = self.stand_in_ways(client);
        if ways
            .iter()
            .any(|way| way.load(Ordering::Relaxed) == network)
        {
            return false;
        }
        // Each word moves on by one, and the oldest is evicted.
        let mut moved = network;
        for way in ways {
            moved = way.swap(moved, Ordering::Relaxed);
        }
        true
    }

    /// Forgets that this client's stand-in was recorded, because it was not logged: its next connection is recorded again.
    pub fn forget_stand_in(self, client: Ipv6Addr) {
        for way in self.stand_in_ways(client) {
            let network = network_word(client);
            // Another /64 may be in its place by now.
            let _ = way.compare_exchange(network, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Forgets which stand-ins were recorded, because some of them were not logged.
    pub fn forget_stand_ins(self) {
        for word in self.0.stand_ins.iter().flatten() {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// The words that may have the client's /64.
    fn stand_in_ways(self, client: Ipv6Addr) -> &'m [AtomicU64] {
        let set = pseudo_v4(client).to_bits() as usize % (MAX_STAND_INS / STAND_IN_WAYS);
        self.0
            .stand_ins
            .get(set)
            .map_or(&[], |ways| ways.as_slice())
    }

    fn record(self, refusal: Refusal) -> bool {
        let number = self.refusal_count().fetch_add(1, Ordering::Relaxed);
        if let Some(record) = self.0.refusals.get(record_index(number)) {
            refusal.store(record, number);
        }
        self.unread_flag().swap(1, Ordering::AcqRel) == 0
    }

    /// Whether a refusal was recorded since [`Settings::arm_refusal_wakeup`].
    pub fn has_unread_refusals(self) -> bool {
        self.unread_flag().load(Ordering::Relaxed) != 0
    }

    /// Arms the wake-up: the next refusal wakes the reader. Call it before reading, since refusals recorded earlier wake no
    /// reader.
    pub fn arm_refusal_wakeup(self) {
        self.unread_flag().swap(0, Ordering::AcqRel);
    }
}

impl RefusalReader {
    /// A reader of the refusals that are recorded from now on.
    pub fn new(settings: Settings<'_>) -> Self {
        Self {
            next: settings.refusal_count().load(Ordering::Acquire),
            stalled: false,
        }
    }

    /// Reads the next refusal. Refusals that were overwritten before they were read are skipped; their counters
    /// ([`Settings::counter`]) include them.
    pub fn next(&mut self, settings: Settings<'_>) -> Option<Refusal> {
        loop {
            let written = settings.refusal_count().load(Ordering::Acquire);
            if self.next >= written {
                return None;
            }
            let oldest = written.saturating_sub(MAX_REFUSALS as u64);
            if self.next < oldest {
                self.next = oldest;
                settings.forget_stand_ins();
            }
            let record = settings.0.refusals.get(record_index(self.next))?;
            match Refusal::load(record, self.next) {
                // The record is being written. If it is unfinished at two reads, it is skipped: its writer was killed.
                None if !self.stalled => {
                    self.stalled = true;
                    return None;
                }
                found => {
                    self.stalled = false;
                    self.next = self.next.saturating_add(1);
                    if found.is_some() {
                        return found;
                    }
                }
            }
        }
    }
}

impl Refusal {
    fn store(
        self,
        [sequence, reason_and_ports, high, low]: &[AtomicU64; REFUSAL_WORDS],
        number: u64,
    ) {
        sequence.store(UNFINISHED, Ordering::Relaxed);
        fence(Ordering::Release);
        let ports = u64::from(self.peer.port()) << 16 | u64::from(self.port);
        reason_and_ports.store((self.reason as u64) << 32 | ports, Ordering::Relaxed);
        let (high_bits, low_bits) = split(to_bits(self.peer.ip()));
        high.store(high_bits, Ordering::Relaxed);
        low.store(low_bits, Ordering::Relaxed);
        sequence.store(number.wrapping_add(1), Ordering::Release);
    }

    /// Loads the record of this number; `None` if the record has another one by now, or is unfinished.
    fn load([sequence, data @ ..]: &[AtomicU64; REFUSAL_WORDS], number: u64) -> Option<Self> {
        let is_finished = |order| sequence.load(order) == number.wrapping_add(1);
        if !is_finished(Ordering::Acquire) {
            return None;
        }
        let [reason_and_ports, high, low] =
            data.each_ref().map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if !is_finished(Ordering::Relaxed) {
            return None;
        }
        let port =
            |shift: u32| u16::try_from(reason_and_ports >> shift & 0xffff).unwrap_or_default();
        Some(Self {
            reason: Counter::from_number(reason_and_ports >> 32)?,
            peer: SocketAddr::new(from_bits(join(high, low)), port(16)),
            port: port(0),
        })
    }
}

/// The client's /64 as a word. Complemented, so that `::/64` is not an empty word.
fn network_word(client: Ipv6Addr) -> u64 {
    !split(to_bits(client.into())).0
}

fn record_index(number: u64) -> usize {
    usize::try_from(number).unwrap_or_default() & (MAX_REFUSALS - 1)
}

/// The sequence of a record that is being written; finished ones count up from 1.
const UNFINISHED: u64 = 0;

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::{Table, zeroed_memory};

    fn refusal(port: u16) -> Refusal {
        Refusal {
            reason: Counter::Source,
            peer: SocketAddr::new("2001:db8::7".parse().unwrap(), port),
            port: 443,
        }
    }

    #[test]
    fn first_refusal_wakes_the_reader_and_all_are_read() {
        let memory = zeroed_memory(64);
        let settings = Table::new(&memory).unwrap().settings();
        let mut reader = RefusalReader::default();
        assert_eq!(
            (reader.next(settings), settings.has_unread_refusals()),
            (None, false)
        );
        assert!(settings.record_refusal(refusal(1)));
        assert!(!settings.record_refusal(refusal(2)));
        assert!(settings.has_unread_refusals());
        settings.arm_refusal_wakeup();
        assert_eq!(reader.next(settings), Some(refusal(1)));
        assert_eq!(reader.next(settings), Some(refusal(2)));
        assert_eq!(
            (reader.next(settings), settings.has_unread_refusals()),
            (None, false)
        );
        assert!(settings.record_refusal(refusal(3)));
        assert_eq!(settings.counter(Counter::Source), 3);
    }

    #[test]
    fn stand_in_is_recorded_once_or_with_each_verbosity_each_time() {
        let memory = zeroed_memory(64);
        let settings = Table::new(&memory).unwrap().settings();
        let peer = "192.0.2.10:4711".parse().unwrap();
        let mut reader = RefusalReader::default();
        let mut record = |client: &str| {
            settings.record_stand_in(peer, client.parse().unwrap(), || 443);
            reader.next(settings).map(|refusal| refusal.reason)
        };
        assert_eq!(record("[2001:db8::7]:5"), None, "the log is off");
        settings.set_refusal_verbosity(RefusalVerbosity::Throttled);
        assert_eq!(record("203.0.113.7:5"), None);
        assert_eq!(record("[2001:db8::7]:5"), Some(Counter::Accepted));
        assert_eq!(record("[2001:db8::8]:6"), None, "of the same /64");
        // This /64 has the stand-in of 2001:db8:1::/64.
        assert_eq!(record("[2001:db8:1::7]:6"), Some(Counter::Accepted));
        assert_eq!(record("[2001:db9:2638:f83a::7]:6"), Some(Counter::Accepted));
        assert_eq!(record("[2001:db8:1::7]:6"), None);
        settings.forget_stand_in("2001:db8:1::8".parse().unwrap());
        assert_eq!(record("[2001:db8:1::7]:6"), Some(Counter::Accepted));
        assert_eq!(record("[2001:db8::7]:6"), None);
        settings.forget_stand_ins();
        assert_eq!(record("[2001:db8::7]:6"), Some(Counter::Accepted));
        settings.set_refusal_verbosity(RefusalVerbosity::Each);
        assert_eq!(record("[2001:db8::7]:7"), Some(Counter::Accepted));
        assert_eq!(settings.counter(Counter::Accepted), 0);
    }

    #[test]
    fn late_reader_gets_the_latest_refusals() {
        let memory = zeroed_memory(64);
        let settings = Table::new(&memory).unwrap().settings();
        let written = MAX_REFUSALS as u16 + 5;
        (0..written).for_each(|port| _ = settings.record_refusal(refusal(port)));
        let mut reader = RefusalReader::default();
        let read: Vec<_> = core::iter::from_fn(|| reader.next(settings)).collect();
        assert_eq!(read, (5..written).map(refusal).collect::<Vec<_>>());
    }

    /// A process may be killed between the two stores of the sequence.
    #[test]
    fn unfinished_record_is_skipped_at_the_second_read() {
        let memory = zeroed_memory(64);
        let settings = Table::new(&memory).unwrap().settings();
        settings.refusal_count().fetch_add(1, Ordering::Relaxed);
        settings.record_refusal(refusal(2));
        let mut reader = RefusalReader::default();
        assert_eq!(reader.next(settings), None);
        assert_eq!(reader.next(settings), Some(refusal(2)));
    }
}
