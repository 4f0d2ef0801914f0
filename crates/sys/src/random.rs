//! Numbers that nobody can guess.

use rustix::rand::{GetRandomFlags, getrandom};

/// So many of them, from the kernel's own generator (getrandom(2)). Right after booting this waits until it
/// is ready.
pub fn words<const N: usize>() -> [u64; N] {
    [(); N].map(|()| {
        let mut word = [0; size_of::<u64>()];
        // Never fails and is never short for so few octets, once the generator is ready.
        let _ = getrandom(&mut word, GetRandomFlags::empty());
        u64::from_ne_bytes(word)
    })
}
