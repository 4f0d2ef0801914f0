//! Cryptographically secure random numbers.

use rustix::rand::{GetRandomFlags, getrandom};

/// `N` random words from the kernel's generator (getrandom(2)). Right after boot this blocks until the generator is
/// seeded.
pub fn words<const N: usize>() -> [u64; N] {
    [(); N].map(|()| {
        let mut word = [0; size_of::<u64>()];
        // Never fails and never returns less for so few bytes, once the generator is seeded.
        let _ = getrandom(&mut word, GetRandomFlags::empty());
        u64::from_ne_bytes(word)
    })
}
