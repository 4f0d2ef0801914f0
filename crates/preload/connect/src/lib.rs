//! `libpeername_connect.so`: connect(2) that begins each TCP connection with a PROXY header.
//!
//! `peername_preload_common` describes how it can be loaded into arbitrary programs.
//!
//! **The header is in the kernel before the first SYN leaves** ([`opening`]). So the stream begins with it, whichever
//! call the program writes with; a non-blocking socket stays non-blocking; and connect(2), poll(2) and getsockopt(2)
//! report the same states of the connection as without the library.
//!
//! | module | |
//! |---|---|
//! | `exports` | the C functions: a few lines each |
//! | `opening` | opens a connection with the header in its first segment |
//! | `claim` | the contents of the header, and the ports it applies to: PEERNAME_* or LIBPROXYPROTO_* |
//! | `imports` | the functions of the program's C library |
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

mod claim;
#[cfg(feature = "freestanding")]
mod exports;
mod imports;
mod opening;
