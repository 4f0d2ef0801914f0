//! The bytes that are sent, so that every byte that comes back can be checked.
//!
//! Byte `n` of a connection depends on `n` and on the connection: a lost, repeated, reordered or
//! flipped byte shows, and so does an answer that belongs to somebody else. The bytes lie ready in
//! a table, so sending costs no copy and checking is one `memcmp`.

use std::fmt;
use std::sync::LazyLock;

/// The longest piece [`at`] gives out and [`check`] takes.
pub(crate) const LONGEST: usize = 256 * 1024;

/// The `length` bytes from `position` on. `length` is at most [`LONGEST`].
pub(crate) fn at(position: u64, length: usize) -> &'static [u8] {
    let start = (position % PERIOD) as usize;
    &TABLE[start..start + length]
}

/// Where the pattern of connection number `serial` begins.
pub(crate) fn start(serial: u64) -> u64 {
    serial.wrapping_mul(SPREAD) % PERIOD
}

/// Compares what came back with what was sent.
///
/// # Errors
/// [`Mismatch`] names the first wrong byte.
pub(crate) fn check(position: u64, received: &[u8]) -> Result<(), Mismatch> {
    let sent = at(position, received.len());
    if sent == received {
        return Ok(());
    }
    let index = sent
        .iter()
        .zip(received)
        .position(|(a, b)| a != b)
        .unwrap_or(0);
    Err(Mismatch {
        index,
        sent: sent[index],
        received: received[index],
    })
}

/// A byte that is not the one that was sent; `index` counts from the start of the piece checked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) index: usize,
    pub(crate) sent: u8,
    pub(crate) received: u8,
}

impl std::error::Error for Mismatch {}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            index,
            sent,
            received,
        } = self;
        write!(
            f,
            "byte {index} came back as {received:#04x}, sent was {sent:#04x}"
        )
    }
}

static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let period: Vec<u8> = (0..PERIOD)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect();
    period.repeat(LONGEST / PERIOD as usize + 2)
});

/// A prime: with a power of two, a relay that repeats or skips one of its own buffers would put
/// equal bytes in their place and go unnoticed.
pub(crate) const PERIOD: u64 = 65_521;

/// Coprime to [`PERIOD`], so neighbouring connections begin far apart and no two of the first
/// 65 521 begin at the same byte.
const SPREAD: u64 = 25_013;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_was_sent_across_the_period() {
        for position in [0, 1, PERIOD - 1, PERIOD, 3 * PERIOD + 7] {
            assert_eq!(check(position, at(position, LONGEST)), Ok(()));
        }
    }

    #[test]
    fn notices_a_flipped_byte() {
        let mut bytes = at(0, 64).to_vec();
        bytes[63] ^= 1;
        assert_eq!(check(0, &bytes).unwrap_err().index, 63);
    }

    #[test]
    fn notices_a_shift_by_any_buffer_size() {
        for shift in [1, 64, 4096, 16 * 1024, 64 * 1024, 256 * 1024] {
            assert!(
                check(0, at(shift, 64)).is_err(),
                "a shift by {shift} went unnoticed"
            );
        }
    }

    #[test]
    fn notices_the_bytes_of_another_connection() {
        let first = at(start(1), 64);
        for other in (2..6_000).chain([0]) {
            assert!(
                check(start(other), first).is_err(),
                "1 and {other} look alike"
            );
        }
    }
}
