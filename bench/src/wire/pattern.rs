//! The byte pattern of the payload, by which every byte that comes back is verified.
//!
//! Byte `n` of a connection depends on `n` and on the connection: a lost, repeated, reordered or flipped byte is detected,
//! and so is an echo that belongs to another connection. The bytes are precomputed in a table, so sending costs no copy
//! and verifying is one `memcmp`.

use std::fmt;
use std::sync::LazyLock;

/// The longest chunk that [`bytes_at`] returns and [`verify`] takes.
pub(crate) const MAX_CHUNK_BYTES: usize = 256 * 1024;

/// The `length` bytes from `position` on. `length` is at most [`MAX_CHUNK_BYTES`].
pub(crate) fn bytes_at(position: u64, length: usize) -> &'static [u8] {
    let start = (position % PERIOD) as usize;
    &TABLE[start..start + length]
}

/// The position where the pattern of connection `serial` begins.
pub(crate) fn start_of(serial: u64) -> u64 {
    serial.wrapping_mul(START_STEP) % PERIOD
}

/// Compares the bytes that came back with those that were sent.
pub(crate) fn verify(position: u64, received: &[u8]) -> Result<(), Mismatch> {
    let sent = bytes_at(position, received.len());
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

/// A byte that differs from the one that was sent; `index` counts from the start of the verified chunk.
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

/// Pseudo-random bytes (xorshift64), repeated so that a chunk of the maximum length can begin at every position.
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
    period.repeat(MAX_CHUNK_BYTES / PERIOD as usize + 2)
});

/// The number of bytes after which the pattern repeats. A prime: buffer sizes are powers of two, and if the period divided
/// them, a relay that repeats or skips a buffer would put equal bytes there, unnoticed.
pub(crate) const PERIOD: u64 = 65_521;

/// Coprime to [`PERIOD`], so consecutive connections begin far apart, and no two of the first 65,521 begin at the
/// same byte.
const START_STEP: u64 = 25_013;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_bytes_verify_across_the_period() {
        for position in [0, 1, PERIOD - 1, PERIOD, 3 * PERIOD + 7] {
            assert_eq!(
                verify(position, bytes_at(position, MAX_CHUNK_BYTES)),
                Ok(())
            );
        }
    }

    #[test]
    fn flipped_byte_is_detected() {
        let mut bytes = bytes_at(0, 64).to_vec();
        bytes[63] ^= 1;
        assert_eq!(verify(0, &bytes).unwrap_err().index, 63);
    }

    #[test]
    fn shift_by_a_usual_buffer_size_is_detected() {
        for shift in [1, 64, 4096, 16 * 1024, 64 * 1024, 256 * 1024] {
            assert!(
                verify(0, bytes_at(shift, 64)).is_err(),
                "a shift by {shift} went unnoticed"
            );
        }
    }

    #[test]
    fn bytes_of_another_connection_are_detected() {
        let first = bytes_at(start_of(1), 64);
        for other in (2..6_000).chain([0]) {
            assert!(
                verify(start_of(other), first).is_err(),
                "the patterns of 1 and {other} are equal"
            );
        }
    }
}
