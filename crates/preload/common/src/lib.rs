//! The base of `libpeername.so` and `libpeername_connect.so`, which are loaded into arbitrary programs (LD_PRELOAD) and
//! therefore have no standard library, no allocator, no thread, no lock, no thread-local and no library that they depend on
//! (DT_NEEDED). All work is done by system calls. The same file works with glibc and musl: all it needs of a C library is
//! `memcpy` and its like, and it uses `__errno_location`, `environ` and `dlsym` if they are present.
//!
//! **No panic can end the program.** Nothing indexes, unwraps or divides; the optimiser proves that no path to a panic
//! is left and removes the handler, and a test checks that the handler's text is not in the libraries
//! (`tests/exec/library.rs`).
//! **errno** is written only on failure: system calls are made directly and do not touch it.
//!
//! | module | |
//! |---|---|
//! | [`socket`], [`address`] | sockets and their addresses as values |
//! | [`environment`] | environment variables |
//! | [`pass`] | the secret arguments that let system calls pass the launcher's seccomp filter |
//! | [`kernel`], [`imports`] | the unsafe part: system calls, and symbols of the C library |
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
    kernel::write_stderr("peername: bug: a preloaded library panicked\n");
    kernel::abort()
}
