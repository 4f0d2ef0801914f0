//! `libpeername.so`: accept(2) and getpeername(2) that know the client behind the proxy.
//!
//! It is loaded into other people's programs (LD_PRELOAD), so it brings nothing of its own: no standard
//! library, no allocator, no thread, no lock, no thread-local, no needed library. What it does it does
//! by system calls. The same file works with glibc and musl: it needs no more of a C library than
//! `memcpy` and its like, and uses `__errno_location`, `environ` and `dlsym` if they are there.
//!
//! **No panic can take the program down.** Nothing here indexes, unwraps or divides; the optimiser proves
//! that no path to a panic is left and removes the handler, and a test looks that its text is not in the
//! library (`tests/exec/library.rs`). **Signals may come at any time**: there is no state but the pointer
//! to the table, and the table is lock-free. **errno** is written only with a failure: system calls are
//! made directly and do not touch it.
//!
//! | module | |
//! |---|---|
//! | `exports` | the C functions: a few lines each |
//! | `accept` | what happens to a connection |
//! | `attendant` | handing unfinished connections over, and taking finished ones |
//! | `state` | the table, found through PEERNAME_TABLE |
//! | `alone`, `sweep` | under the name of `libproxyproto.so`: without a launcher and an attendant |
//! | `socket`, `address` | sockets and their addresses as values |
//! | `kernel`, `imports` | the unsafe part: system calls, and what the C library has |
#![cfg_attr(feature = "freestanding", no_std)]
#![deny(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
// Without the feature nothing is exported, and so nothing is used.
#![cfg_attr(
    not(feature = "freestanding"),
    allow(dead_code, reason = "a build for lints only")
)]

mod accept;
mod address;
mod alone;
mod attendant;
#[cfg(feature = "freestanding")]
mod exports;
mod imports;
mod kernel;
mod socket;
mod state;
mod sweep;
