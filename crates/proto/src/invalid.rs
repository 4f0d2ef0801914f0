//! The errors of bytes that are not a valid header. Each is caused by the sender or by its configuration.

use core::fmt::{self, Display, Formatter};

use thiserror::Error;

/// The reason why bytes are not a valid header, and can't become one.
///
/// The text contains numbers only, nothing that the peer could choose freely, and is safe to log.
/// Offsets count bytes from the first of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Invalid {
    /// The bytes start neither as version 1 nor as version 2 do.
    #[error(
        "no PROXY protocol header: byte {offset} fits neither version; \
         make the sender add one, or don't expect one on this port"
    )]
    NoHeader {
        /// The offset of the first wrong byte.
        offset: usize,
    },
    /// The text version was sent over UDP.
    #[error("a version 1 header in a datagram, where only version 2 is defined")]
    V1OnDatagram,
    /// A datagram ends before its header does.
    #[error(
        "the datagram ends after {have} bytes, inside a header of at least {need}; \
         the header must be whole in each datagram"
    )]
    Truncated {
        /// Bytes in the datagram.
        have: usize,
        /// The least bytes that the header takes.
        need: usize,
    },
    /// A field of a version 1 line breaks the grammar.
    #[error("version 1 line: byte {offset} is wrong in {field}; the sender breaks section 2.1")]
    V1Line {
        /// The part of the line.
        field: V1Field,
        /// The offset of the first wrong byte.
        offset: usize,
    },
    /// A version 1 line does not end within the maximum length.
    #[error(
        "version 1 line: no CRLF within {} bytes; the sender breaks section 2.1",
        crate::V1_MAX_LEN
    )]
    V1TooLong,
    /// Version nibble other than 2.
    #[error("binary header of version {0}: only 2 exists; the sender breaks section 2.2")]
    V2Version(u8),
    /// Command nibble other than LOCAL and PROXY.
    #[error("version 2 command {0:#x} is not assigned; the sender breaks section 2.2")]
    V2Command(u8),
    /// An unassigned address family or transport.
    #[error(
        "version 2 family and transport {0:#04x} are not assigned; the sender breaks section 2.2"
    )]
    V2Family(u8),
    /// The announced length is too short for the addresses.
    #[error(
        "version 2 length {length} can't hold the {need} bytes of addresses that its family has; \
         the sender breaks section 2.2"
    )]
    V2Length {
        /// The announced length.
        length: usize,
        /// The bytes that the addresses take.
        need: usize,
    },
    /// The TLVs don't fill the header exactly.
    #[error("the TLV at byte {offset} reaches beyond the header; the sender breaks section 2.2")]
    TlvOverrun {
        /// The offset of the TLV.
        offset: usize,
    },
    /// UNIQUE_ID is limited to 128 bytes.
    #[error(
        "the UNIQUE_ID at byte {offset} has {length} bytes, more than the 128 of section 2.2.5"
    )]
    UniqueIdLength {
        /// The offset of the TLV.
        offset: usize,
        /// Bytes in its value.
        length: usize,
    },
    /// The SSL TLV is too short, or its sub-TLVs don't fill it exactly.
    #[error("the SSL TLV at byte {offset} has no valid structure; the sender breaks section 2.2.6")]
    Ssl {
        /// The offset of the TLV.
        offset: usize,
    },
    /// A checksum that isn't four bytes.
    #[error("the CRC32C at byte {offset} has {length} bytes instead of 4 (section 2.2.3)")]
    ChecksumLength {
        /// The offset of the TLV.
        offset: usize,
        /// Bytes in its value.
        length: usize,
    },
    /// Two checksums.
    #[error("a second CRC32C at byte {offset}: only one can be right (section 2.2.3)")]
    ChecksumTwice {
        /// The offset of the second checksum.
        offset: usize,
    },
    /// The header was damaged on the way, or its checksum computed in another way.
    #[error(
        "CRC32C is {stored:#010x}, the header's is {computed:#010x}: it was damaged on the way, or the \
         sender doesn't compute it as section 2.2.3 says"
    )]
    ChecksumMismatch {
        /// The checksum as sent.
        stored: u32,
        /// The checksum of the header as received.
        computed: u32,
    },
    /// The datagram is shorter than a Simple Proxy Protocol header.
    #[error(
        "{have} bytes are no Simple Proxy Protocol header, which takes 38; make the sender add one"
    )]
    SppTruncated {
        /// Bytes in the datagram.
        have: usize,
    },
    /// The datagram does not start with the magic number.
    #[error(
        "no Simple Proxy Protocol header: it starts with {0:#06x}, not 0x56ec; make the sender add \
         one, or expect another dialect: version 2 starts with 0x0d0a"
    )]
    SppMagic(u16),
}

impl Invalid {
    /// A short name for counting: `snake_case`, one a kind of failure, stable across releases.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoHeader { .. } => "no_header",
            Self::V1OnDatagram => "v1_on_datagram",
            Self::Truncated { .. } => "truncated",
            Self::V1Line { field, .. } => field.reason(),
            Self::V1TooLong => "v1_too_long",
            Self::V2Version(_) => "v2_version",
            Self::V2Command(_) => "v2_command",
            Self::V2Family(_) => "v2_family",
            Self::V2Length { .. } => "v2_length",
            Self::TlvOverrun { .. } => "tlv_overrun",
            Self::UniqueIdLength { .. } => "unique_id_length",
            Self::Ssl { .. } => "ssl_structure",
            Self::ChecksumLength { .. } => "crc32c_length",
            Self::ChecksumTwice { .. } => "crc32c_twice",
            Self::ChecksumMismatch { .. } => "crc32c_mismatch",
            Self::SppTruncated { .. } => "spp_truncated",
            Self::SppMagic(_) => "spp_magic",
        }
    }
}

/// The parts of a version 1 line, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum V1Field {
    /// `TCP4`, `TCP6` or `UNKNOWN`, and what must follow it.
    Protocol,
    /// The client's address and the space after it.
    Source,
    /// The address connected to and the space after it.
    Destination,
    /// The client's port and the space after it.
    SourcePort,
    /// The port connected to and the CR after it.
    DestinationPort,
    /// The part of an UNKNOWN line that is to be ignored. No error names it: its only wrong byte is an LF, a [`Self::LineEnd`].
    Ignored,
    /// The LF after the CR, or an LF without one.
    LineEnd,
}

impl V1Field {
    fn reason(self) -> &'static str {
        match self {
            Self::Protocol => "v1_protocol",
            Self::Source => "v1_source",
            Self::Destination => "v1_destination",
            Self::SourcePort => "v1_source_port",
            Self::DestinationPort => "v1_destination_port",
            Self::Ignored | Self::LineEnd => "v1_line_end",
        }
    }
}

impl Display for V1Field {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Protocol => "the protocol (TCP4, TCP6 or UNKNOWN)",
            Self::Source => "the source address",
            Self::Destination => "the destination address",
            Self::SourcePort => "the source port",
            Self::DestinationPort => "the destination port",
            Self::Ignored => "the ignored part of UNKNOWN",
            Self::LineEnd => "the line's end (CRLF, not LF alone)",
        })
    }
}
