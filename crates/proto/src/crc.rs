//! The checksum of a header (section 2.2.3): CRC-32C over the whole header, with the checksum's own value taken as zero.

use crate::invalid::Invalid;

/// Bytes of a checksum's value.
pub(crate) const LEN: usize = 4;

/// Verifies the checksum TLV at `offset` of a whole header.
///
/// The value is big endian: the specification doesn't say so, but HAProxy, nginx and AWS send it in this order.
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

/// Computes the checksum of a header with its checksum value at `value_at`. `None` if that is out of range.
pub(crate) fn compute(header: &[u8], value_at: usize) -> Option<u32> {
    let (before, rest) = header.split_at_checked(value_at)?;
    let (_, after) = rest.split_first_chunk::<LEN>()?;
    let crc = append(append(0, before), &[0; LEN]);
    Some(append(crc, after))
}

#[cfg(feature = "std")]
use crc32c::crc32c_append as append;

/// Continues a checksum bit by bit, for builds that can't detect the CPU's features. A header is short, and few have
/// a checksum.
#[cfg(any(test, not(feature = "std")))]
fn append_bitwise(crc: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!crc, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(crc & 1))
        })
    })
}

#[cfg(not(feature = "std"))]
use append_bitwise as append;

/// Castagnoli's polynomial, bit-reversed.
#[cfg(any(test, not(feature = "std")))]
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Bytes of type and length, in front of each value.
const TLV_HEAD: usize = 3;

#[cfg(test)]
mod tests {
    /// RFC 3720, appendix B.4 gives the polynomial; the check value is that of the CRC catalogues.
    #[test]
    fn library_computes_castagnolis_checksum() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn bitwise_checksum_equals_the_librarys() {
        assert_eq!(super::append_bitwise(0, b"123456789"), 0xe306_9283);
        let half = super::append_bitwise(0, b"12345");
        assert_eq!(super::append_bitwise(half, b"6789"), 0xe306_9283);
    }
}
