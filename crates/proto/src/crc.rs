//! The checksum over a header (section 2.2.3): CRC-32C over all of it, its own value taken as zero.

use crate::invalid::Invalid;

/// Octets of a checksum's value.
pub(crate) const LEN: usize = 4;

/// Compares the field at `offset` of a whole header with what the header's octets give.
///
/// It is stored big endian: the specification doesn't say so, but HAProxy, nginx and AWS do it.
pub(crate) fn verify(header: &[u8], value: &[u8], offset: usize) -> Result<(), Invalid> {
    let length = value.len();
    let bad_length = Invalid::ChecksumLength { offset, length };
    let stored = u32::from_be_bytes(value.try_into().map_err(|_| bad_length)?);
    let computed = compute(header, offset.saturating_add(TLV_HEAD)).ok_or(bad_length)?;
    if stored == computed {
        return Ok(());
    }
    Err(Invalid::ChecksumMismatch { stored, computed })
}

/// The checksum of a header whose own stands at `value_at`. `None` if it can't stand there.
pub(crate) fn compute(header: &[u8], value_at: usize) -> Option<u32> {
    let (before, rest) = header.split_at_checked(value_at)?;
    let (_, after) = rest.split_first_chunk::<LEN>()?;
    let crc = append(append(0, before), &[0; LEN]);
    Some(append(crc, after))
}

#[cfg(feature = "std")]
use crc32c::crc32c_append as append;

/// Goes on with the checksum of what came before: bit by bit, for builds that can't ask the processor
/// what it can do. A header is short, and few have a checksum.
#[cfg(any(test, not(feature = "std")))]
fn append_bitwise(crc: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!crc, |crc, &octet| {
        (0..8).fold(crc ^ u32::from(octet), |crc, _| {
            (crc >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(crc & 1))
        })
    })
}

#[cfg(not(feature = "std"))]
use append_bitwise as append;

/// Castagnoli's, its bits reversed.
#[cfg(any(test, not(feature = "std")))]
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The type and the length, in front of each value.
const TLV_HEAD: usize = 3;

#[cfg(test)]
mod tests {
    /// RFC 3720, appendix B.4 gives the polynomial; the check value is that of the CRC catalogues.
    #[test]
    fn the_library_computes_castagnoli() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn bit_by_bit_it_is_the_same() {
        assert_eq!(super::append_bitwise(0, b"123456789"), 0xe306_9283);
        let half = super::append_bitwise(0, b"12345");
        assert_eq!(super::append_bitwise(half, b"6789"), 0xe306_9283);
    }
}
