//! `libpeername.so`: accept(2) and getpeername(2) that return the client behind the proxy.
//!
//! `peername_preload_common` describes how it can be loaded into arbitrary programs. **It is async-signal-safe**: its only
//! state is the pointer to the table, which is lock-free, single words about listeners, and the addresses of functions that
//! are looked up when it is loaded.
//!
//! | module | |
//! |---|---|
//! | `exports` | the C functions: a few lines each |
//! | `accept` | admits, parks or refuses a connection |
//! | `listener_cache` | caches properties of listeners |
//! | `waiter_client` | requests to the header waiter: parks connections with an incomplete header, takes ready ones |
//! | `state` | the table, opened by PEERNAME_TABLE |
//! | `standalone`, `sweep` | under the name `libproxyproto.so`, where there is no launcher and no header waiter |
//! | `debug` | LIBPROXYPROTO_DEBUG |
//! | `propagation` | adds the library to the environment of processes that the program executes |
//! | `imports` | accept4(2) as a cancellation point, and exec(3) of the program's C library |
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
