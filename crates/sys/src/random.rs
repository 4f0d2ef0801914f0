//! Cryptographically secure random numbers.

use std::io;

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::{NameCall, Result};

/// `N` random words from the kernel's generator. Right after boot this blocks until the generator is seeded.
pub fn words<const N: usize>() -> Result<[u64; N]> {
    let mut bytes = [[0; size_of::<u64>()]; N];
    let buffer = bytes.as_flattened_mut();
    let len =
        retry_on_intr(|| getrandom(&mut *buffer, GetRandomFlags::empty())).call("getrandom(2)")?;
    // The kernel returns fewer only beyond 256 bytes.
    if len < buffer.len() {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof)).call("getrandom(2)");
    }
    Ok(bytes.map(u64::from_ne_bytes))
}
