//! What `libpeername.so` and `libpeername_connect.so` have in common: to be loaded into other people's
//! programs (LD_PRELOAD), and so to bring nothing of their own. No standard library, no allocator, no
//! thread, no lock, no thread-local, no needed library. What they do they do by system calls. The same
//! file works with glibc and musl: it needs no more of a C library than `memcpy` and its like, and uses
//! `__errno_location`, `environ` and `dlsym` if they are there.
//!
//! **No panic can take the program down.** Nothing indexes, unwraps or divides; the optimiser proves that
//! no path to a panic is left and removes the handler, and a test looks that its text is not in the
//! libraries (`tests/exec/library.rs`). **errno** is written only with a failure: system calls are made
//! directly and do not touch it.
//!
//! | module | |
//! |---|---|
//! | [`socket`], [`address`] | sockets and their addresses as values |
//! | [`environment`] | what the program was started with |
//! | [`pass`] | what lets system calls past the launcher's filter |
//! | [`kernel`], [`imports`] | the unsafe part: system calls, and what the C library has |
#![no_std]
#![deny(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

pub mod address;
pub mod environment;
pub mod imports;
pub mod kernel;
pub mod pass;
pub mod socket;

/// Never reached: see the crate's documentation.
#[cfg(feature = "freestanding")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    kernel::complain("peername: bug: a preloaded library panicked\n");
    kernel::abort()
}
