//! Bytes that encode their position in the stream, so that loss, duplication and reordering show.

/// `len` bytes of stream number `stream`. Every 8-byte word depends on both and repeats nowhere.
pub(crate) fn pattern(stream: u64, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len.div_ceil(8) as u64)
        .flat_map(|at| mix(stream << 40 | at).to_le_bytes())
        .collect();
    bytes.truncate(len);
    bytes
}

/// Asserts equality, and fails with the offset of the first difference rather than with megabytes of numbers.
#[track_caller]
pub(crate) fn assert_same(received: &[u8], sent: &[u8]) {
    let first = received.iter().zip(sent).position(|(a, b)| a != b);
    assert_eq!(first, None, "the first wrong byte");
    assert_eq!(received.len(), sent.len(), "bytes received and sent");
}

/// The finaliser of SplitMix64: a bijection, so equal words mean equal offsets.
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
