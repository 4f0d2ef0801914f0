//! The header of an HTTP/2 frame (RFC 9113, section 4.1).

/// The header of a frame: its first nine bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Bytes of the payload.
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

/// Collects a header that may come in pieces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameHeaderReader {
    bytes: [u8; FRAME_HEADER_LEN],
    len: usize,
}

impl FrameHeaderReader {
    /// Takes bytes up to the end of the header. Returns the header once it is complete, and expects the next one then.
    pub(crate) fn take(&mut self, bytes: &mut &[u8]) -> Option<FrameHeader> {
        while let Some((byte, rest)) = bytes.split_first() {
            if let Some(slot) = self.bytes.get_mut(self.len) {
                *slot = *byte;
            }
            *bytes = rest;
            self.len += 1;
            if self.len == FRAME_HEADER_LEN {
                self.len = 0;
                let [a, b, c, kind, flags, stream @ ..] = self.bytes;
                return Some(FrameHeader {
                    len: u32::from_be_bytes([0, a, b, c]) as usize,
                    kind,
                    flags,
                    stream: u32::from_be_bytes(stream) & STREAM_MASK,
                });
            }
        }
        None
    }
}

// Types of frames (RFC 9113, section 6).
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const CONTINUATION: u8 = 9;
const FRAME_HEADER_LEN: usize = 9;
/// All bits of a stream identifier but the reserved one.
const STREAM_MASK: u32 = 0x7fff_ffff;
