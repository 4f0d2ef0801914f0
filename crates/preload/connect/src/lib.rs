//! `libpeername_connect.so`: connect(2) that begins each TCP connection with a PROXY header.
//!
//! How it can be loaded into other people's programs is told in `peername_preload_common`.
//!
//! **The header is in the kernel before the first SYN leaves** ([`opening`]). So it is the first of the
//! stream whoever writes next and by whatever call, a non-blocking socket stays so, and a connection
//! that is waited for, polled for or asked after is in the states that it would be in without us.
//!
//! | module | |
//! |---|---|
//! | `exports` | the C functions: a few lines each |
//! | `opening` | how a connection begins |
//! | `claim` | what the header says, and which connections have one: PEERNAME_* or LIBPROXYPROTO_* |
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
