//! `libpeername.so`: accept(2) and getpeername(2) that know the client behind the proxy.
//!
//! How it can be loaded into other people's programs is told in `peername_preload_common`. **Signals may
//! come at any time**: there is no state but the pointer to the table, which is lock-free, and
//! single words about listeners.
//!
//! | module | |
//! |---|---|
//! | `exports` | the C functions: a few lines each |
//! | `accept` | what happens to a connection |
//! | `listener_cache` | properties of listeners |
//! | `waiter_client` | handing unfinished connections over, and taking finished ones |
//! | `state` | the table, found through PEERNAME_TABLE |
//! | `standalone`, `sweep` | under the name of `libproxyproto.so`: without a launcher and a header waiter |
//! | `debug` | LIBPROXYPROTO_DEBUG |
//! | `propagation` | the environment of what the program executes |
//! | `imports` | accept4(2) and exec(3) of the program's C library |
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
mod debug;
#[cfg(feature = "freestanding")]
mod exports;
mod imports;
mod listener_cache;
mod propagation;
mod standalone;
mod state;
mod sweep;
mod waiter_client;
