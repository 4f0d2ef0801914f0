//! The table's settings: trusted networks, ports, policy, secrets (system call arguments, wake-up connections), and counters.
//!
//! The launcher writes them once, before another process has the table. A container's supervisor writes them each time it
//! starts, but keeps the secret of wake-up connections. Otherwise only the counters, the gauges, the refusal verbosity and the
//! ports of wake-up connections change. They are in the table and not in environment variables, which any program passes on,
//! prints and edits.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};

use peername_proto::{HeaderPolicy, SourcePolicy};

use crate::layout::{MAX_NETWORKS, Parts};
use crate::network::Network;
use crate::port_set::PortSet;
use crate::socket_key::SocketListing;

/// The settings of a table.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'m>(pub(crate) Parts<'m>);

/// The rules for connections: which need a header, which sources a header may name, and limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether connections without a header, and from untrusted peers, are refused. Otherwise the program gets them as they
    /// are.
    pub header_required: bool,
    /// Whether the policy applies to every listener, and not only to the listed ports.
    pub all_ports: bool,
    /// Whether getsockname(2) returns the destination of the header.
    pub show_destination: bool,
    /// Whether the header waiter judges each client, so that the library admits no connection by itself.
    pub judged_by_waiter: bool,
    /// The header policy: which valid headers are accepted.
    pub headers: HeaderPolicy,
    /// The source policy: which clients a header may name.
    pub sources: SourcePolicy,
    /// The largest header that is accepted, in bytes.
    pub max_header: usize,
    /// The network namespace the header waiter is in (SO_NETNS_COOKIE; 0 if unknown).
    pub namespace: u64,
    /// The way in which a sweep lists the open sockets.
    pub listing: SocketListing,
}

/// The fifth and sixth argument of a system call that takes fewer: the kernel ignores them, a seccomp filter can check them.
pub type SpareArguments = [u64; 2];

/// The fifth and sixth argument of a getpeername(2) that probes for the filter: with the filter it fails with
/// [`FILTER_PROBE_ERRNO`].
pub const FILTER_PROBE: SpareArguments = [
    u64::from_be_bytes(*b"peername"),
    u64::from_be_bytes(*b"is there"),
];
/// EREMCHG, which getpeername(2) itself never returns.
pub const FILTER_PROBE_ERRNO: i32 = 78;

/// Defines [`Counter`] and the array of all its variants.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters, over all processes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[$doc])* $name,)*
        }

        impl Counter {
            /// All counters.
            pub const ALL: [Self; [$(Counter::$name),*].len()] = [$(Self::$name),*];
        }
    };
}

counters! {
    /// Connections that the program got with a complete header, with or without a client (LOCAL, UNKNOWN).
    Accepted,
    /// Connections without a header that the program got, since none is required.
    PassedThrough,
    /// Refused: the peer may not send headers.
    Untrusted,
    /// Refused: no header, or an invalid one.
    NotAHeader,
    /// Refused: the header policy does not accept the header ([`Policy::headers`]).
    HeaderRefused,
    /// Refused: the peer closed the connection before its header was complete, as port scans do, and health checks that
    /// only connect.
    Closed,
    /// Refused: the header was not complete in time.
    Late,
    /// Refused: the source policy does not admit the client that the header names ([`Policy::sources`]).
    Source,
    /// Refused: the client is on the deny list. The record of this and the next three reasons names the client, not the peer.
    ClientDenied,
    /// Refused: there is an allow list, and the client is not on it.
    ClientNotAllowed,
    /// Refused: the header lacks a required TLV.
    TlvMissing,
    /// Refused: a required TLV has another value.
    TlvMismatch,
    /// Refused: the table has no free slot.
    Full,
    /// Parked at the header waiter because the header was incomplete.
    Parked,
    /// Refused: too many connections are parked at the header waiter.
    WaiterUnavailable,
    /// Refused: no request could be sent to the header waiter.
    WaiterUnreachable,
    /// Refused: another open socket has the same key.
    KeyInUse,
    /// Refused: the kernel gives the socket no key.
    NoKey,
    /// Refused: the wake-up connection to its listener was refused, although the listener listens.
    ListenerUnreachable,
    /// Refused: its listener was closed while it waited at the header waiter, or is in a network namespace that the header
    /// waiter can't reach.
    ListenerClosed,
    /// Refused: the container's supervisor ended while it waited at the header waiter.
    SupervisorStopped,
}

impl Counter {
    /// Whether the header waiter's judge refuses for this reason ([`Policy::judged_by_waiter`]).
    pub fn is_client_refusal(self) -> bool {
        use Counter::{ClientDenied, ClientNotAllowed, TlvMismatch, TlvMissing};
        matches!(
            self,
            ClientDenied | ClientNotAllowed | TlvMissing | TlvMismatch
        )
    }

    pub(crate) fn from_number(number: u64) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|counter| *counter as u64 == number)
    }
}

impl<'m> Settings<'m> {
    /// The maximum number of networks for [`Settings::write`].
    pub const MAX_NETWORKS: usize = MAX_NETWORKS;

    /// Writes the settings. Networks beyond [`Settings::MAX_NETWORKS`] are dropped, so check their number before. Where there
    /// is no filter, `pass` is zero ([`Settings::pass`]).
    pub fn write(self, policy: Policy, networks: &[Network], pass: SpareArguments) {
        let flags = [
            (HEADER_REQUIRED, policy.header_required),
            (ALL_PORTS, policy.all_ports),
            (SHOW_DESTINATION, policy.show_destination),
            (JUDGED_BY_WAITER, policy.judged_by_waiter),
            (STRICT_HEADERS, policy.headers.strict),
            (REQUIRE_CLIENT, policy.headers.require_client),
        ];
        let flags = flags.map(|(flag, is_set)| if is_set { flag } else { 0 });
        self.set(
            Word::Flags,
            flags.iter().fold(0, |flags, flag| flags | flag),
        );
        self.set(Word::Sources, policy.sources.to_word());
        self.set(Word::MaxHeader, policy.max_header as u64);
        self.set(Word::Namespace, policy.namespace);
        self.set(Word::Listing, policy.listing.to_word());
        let [fifth, sixth] = pass;
        self.set(Word::PassFifth, fifth);
        self.set(Word::PassSixth, sixth);
        for (words, network) in self.0.networks.iter().zip(networks) {
            network.store(words);
        }
        self.set(Word::Trusted, networks.len().min(MAX_NETWORKS) as u64);
        self.set(Word::SweepAt, (self.0.keys.len() as u64) >> 1);
        self.word(Word::Magic).store(MAGIC_VALUE, Ordering::Release);
    }

    /// Whether the settings have been written by this version.
    pub(crate) fn are_of_this_version(self) -> bool {
        self.word(Word::Magic).load(Ordering::Acquire) == MAGIC_VALUE
    }

    pub(crate) fn are_unwritten(self) -> bool {
        self.word(Word::Magic).load(Ordering::Acquire) == 0
    }

    /// The rules for connections.
    pub fn policy(self) -> Policy {
        Policy {
            header_required: self.has(HEADER_REQUIRED),
            all_ports: self.has(ALL_PORTS),
            show_destination: self.has(SHOW_DESTINATION),
            judged_by_waiter: self.has(JUDGED_BY_WAITER),
            headers: HeaderPolicy {
                strict: self.has(STRICT_HEADERS),
                require_client: self.has(REQUIRE_CLIENT),
            },
            sources: SourcePolicy::from_word(self.get(Word::Sources)),
            max_header: usize::try_from(self.get(Word::MaxHeader)).unwrap_or(usize::MAX),
            namespace: self.get(Word::Namespace),
            listing: self.listing(),
        }
    }

    /// See [`Policy::listing`].
    pub(crate) fn listing(self) -> SocketListing {
        SocketListing::from_word(self.get(Word::Listing))
    }

    /// 1 once the client of an MPTCP socket has been stored: as long as it is 0, a lookup need not query the socket's protocol.
    pub(crate) fn multipath_flag(self) -> &'m AtomicU64 {
        self.word(Word::Multipath)
    }

    /// Whether the trusted networks contain this address.
    pub fn trusts(self, peer: IpAddr) -> bool {
        let trusted = usize::try_from(self.get(Word::Trusted)).unwrap_or_default();
        let networks = self.0.networks.iter().take(trusted);
        networks
            .map(Network::load)
            .any(|network| network.contains(peer))
    }

    /// The ports on which headers are expected, unless [`Policy::all_ports`] is set.
    pub fn ports(self) -> PortSet<'m> {
        PortSet::new(self.0.ports)
    }

    /// Whether a listener on this port expects headers.
    pub fn covers(self, port: u16) -> bool {
        self.has(ALL_PORTS) || self.ports().contains(port)
    }

    /// The fifth and sixth argument of the system calls that the library makes: random bits that only the table's user can
    /// read. The seccomp filter of `peername exec` allows a call with these arguments, and sends every other call to the
    /// supervisor. So a process without the library can't accept by itself.
    pub fn pass(self) -> SpareArguments {
        [self.get(Word::PassFifth), self.get(Word::PassSixth)]
    }

    /// Increments a counter.
    pub fn count(self, counter: Counter) {
        if let Some(word) = self.counter_word(counter) {
            word.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The value of a counter.
    pub fn counter(self, counter: Counter) -> u64 {
        self.counter_word(counter)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The number of occupied slots.
    pub fn used(self) -> u64 {
        self.get(Word::Used)
    }

    pub(crate) fn used_word(self) -> &'m AtomicU64 {
        self.word(Word::Used)
    }

    /// The number of sweeps that have begun ([`crate::Table::begin_sweep`]).
    pub(crate) fn sweep_number(self) -> &'m AtomicU64 {
        self.word(Word::Sweep)
    }

    /// The number of refusals recorded so far.
    pub(crate) fn refusal_count(self) -> &'m AtomicU64 {
        self.word(Word::Refusals)
    }

    /// 1 if the reader of refusals was woken since it last armed the wake-up.
    pub(crate) fn unread_flag(self) -> &'m AtomicU64 {
        self.word(Word::Unread)
    }

    /// Claims the sweep, if one is due. Returns true to one caller only.
    pub fn claim_sweep(self) -> bool {
        let at = self.get(Word::SweepAt);
        self.get(Word::Used) >= at
            && self
                .word(Word::SweepAt)
                .compare_exchange(at, u64::MAX, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Schedules the next sweep, at the end of one. It is due when half of the slots that are free now are occupied.
    pub fn schedule_sweep(self) {
        let slots = self.0.keys.len() as u64;
        let used = self.get(Word::Used).min(slots);
        let free = slots.saturating_sub(used);
        self.set(Word::SweepAt, used.saturating_add((free >> 1).max(1)));
    }

    /// The index of a counter among the fixed words.
    pub(crate) fn counter_index(counter: Counter) -> usize {
        (Word::FirstCounter as usize).saturating_add(counter as usize)
    }

    fn counter_word(self, counter: Counter) -> Option<&'m AtomicU64> {
        self.0.fixed.get(Self::counter_index(counter))
    }

    fn has(self, flag: u64) -> bool {
        self.get(Word::Flags) & flag != 0
    }

    pub(crate) fn get(self, word: Word) -> u64 {
        self.word(word).load(Ordering::Relaxed)
    }

    pub(crate) fn set(self, word: Word, value: u64) {
        self.word(word).store(value, Ordering::Relaxed);
    }

    /// The fallback is never used: it is there because nothing may panic.
    pub(crate) fn word(self, word: Word) -> &'m AtomicU64 {
        let [first, ..] = self.0.fixed;
        self.0.fixed.get(word as usize).unwrap_or(first)
    }
}

/// The fixed words. The counters begin with the last one, the gauges ([`crate::gauge`]) behind the counters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Word {
    Magic,
    Flags,
    Used,
    SweepAt,
    MaxHeader,
    Namespace,
    Trusted,
    Sweep,
    Sources,
    PassFifth,
    PassSixth,
    Refusals,
    Unread,
    Listing,
    Multipath,
    RefusalVerbosity,
    WakeupFirst,
    WakeupSecond,
    FirstCounter,
}

/// `peernam`, then the version of the layout: a library of another version does not use the table.
const MAGIC_VALUE: u64 = u64::from_be_bytes(*b"peernam\x0b");

// The bits of `Word::Flags`.
const HEADER_REQUIRED: u64 = 1;
const ALL_PORTS: u64 = 1 << 1;
const SHOW_DESTINATION: u64 = 1 << 2;
const JUDGED_BY_WAITER: u64 = 1 << 3;
const STRICT_HEADERS: u64 = 1 << 4;
const REQUIRE_CLIENT: u64 = 1 << 5;
