//! Who is at the other end of which socket: a table in memory that processes share.
//!
//! `peername exec` makes the table, the preloaded library (or the supervisor of system calls) writes a
//! client into it when a connection is accepted, and getpeername(2) reads it in whichever process the
//! descriptor has come to. The key is the kernel's number of the socket (SO_COOKIE, since Linux 4.6): it
//! is of the socket, not of the descriptor, and not used again until the next boot. So identities
//! survive dup, fork, exec and SCM_RIGHTS, and a descriptor that is used again never inherits one.
//!
//! Nothing here allocates, locks, panics or makes a system call: the table is a slice of atomic
//! words that the caller has mapped. Whoever may write to that memory may forge identities; that is
//! for the file's owner and mode to prevent.
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

mod address;
mod bits;
mod header_check;
mod layout;
mod refusals;
mod request;
mod settings;
mod shown;
mod table;

pub use address::Network;
pub use bits::Ports;
pub use header_check::{Ends, HeaderCheck, Peeked, Step};
pub use peername_proto::SourcePolicy;
pub use refusals::{Refusal, RefusalReader};
pub use request::{Request, Wish};
pub use settings::{Counter, PROBE, PROBE_ERRNO, Policy, Secrets, Settings, Signature};
pub use shown::{pseudo_v4, shown};
pub use table::{Full, Identity, Place, Table};
