//! The identity table: the true client of each socket, in memory that processes share; and the check of headers.
//!
//! `peername exec` creates the table; the preloaded library (or the supervisor of system calls) stores a client when a
//! connection is accepted, and getpeername(2) looks it up, in any process that has the descriptor. The key is a number of
//! the kernel that belongs to the socket, not to the descriptor ([`SocketKey`]). So identities survive dup, fork, exec and
//! SCM_RIGHTS, and a reused descriptor never inherits one. Keys are not trusted to be unique: a second socket with the same
//! key is refused, and each lookup compares the real peer.
//!
//! Nothing here allocates, locks, panics or makes a system call: the table is a slice of atomic words that the caller has
//! mapped. A process that can write to that memory can forge identities; the file's owner and mode must prevent that.
#![no_std]
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "a test that panics is a test that fails"
    )
)]

#[cfg(test)]
extern crate std;

/// Memory of an empty table with `slots` slots.
#[cfg(test)]
fn zeroed_memory(slots: usize) -> std::vec::Vec<core::sync::atomic::AtomicU64> {
    std::iter::repeat_with(Default::default)
        .take(layout::words(slots))
        .collect()
}

mod counts;
mod gauge;
mod header_check;
mod layout;
mod network;
mod port_set;
mod proc_net_tcp;
mod refusal_ring;
mod settings;
mod socket_family;
mod socket_key;
mod table;
mod waiter_request;
mod wakeup;

pub use counts::Counts;
pub use gauge::{Gauge, RefusalVerbosity};
pub use header_check::{HeaderAddresses, HeaderCheck, Peeked, Step};
pub use network::Network;
pub use peername_proto::{HeaderPolicy, SourcePolicy};
pub use port_set::PortSet;
pub use proc_net_tcp::connected_inode;
pub use refusal_ring::{Refusal, RefusalReader};
pub use settings::{Counter, FILTER_PROBE, FILTER_PROBE_ERRNO, Policy, Settings, SpareArguments};
pub use socket_family::{as_socket_family, pseudo_v4};
pub use socket_key::{SocketKey, SocketListing, SocketQueries};
pub use table::{Identity, NotStored, OccupiedSlot, Table};
pub use waiter_request::{OPEN_CHANNEL, WaiterRequest};
pub use wakeup::WAKEUP_SECRET_LEN;
