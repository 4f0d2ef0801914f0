//! Version 2 headers (section 2.2), written in place.

use std::net::SocketAddr;

use thiserror::Error;

use super::plain::{INET, INET6, PROXY, PlainHeader, STREAM, VERSION};
use crate::crc;
use crate::header::{Transport, UnixName};
use crate::invalid::Invalid;
use crate::parse::v2::{FIXED_LEN, SIGNATURE};
use crate::tlv::{Tlv, Tlvs, kind};

/// The reason why a header can't be written, always a mistake of the caller. Nothing was appended to the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The length field has 16 bits.
    #[error(
        "the addresses and TLVs take {0} bytes, more than the 65535 of section 2.2; leave some TLV out"
    )]
    TooLong(usize),
    /// Receivers refuse such a value.
    #[error("TLV value: {0}")]
    Value(#[from] Invalid),
    /// A checksum is computed, not given.
    #[error("CRC32C can't be given as a TLV; ask for it to be computed")]
    Checksum,
}

/// Appends one header to a buffer; [`V2Writer::finish`] completes it.
///
/// A header that isn't finished, or can't be, leaves the buffer as it was.
///
/// ```
/// use peername_proto::{Transport, V2Writer, kind};
///
/// let (source, destination) = ("192.0.2.1:1000".parse()?, "198.51.100.1:443".parse()?);
/// let mut out = Vec::new();
/// V2Writer::proxy(&mut out, Transport::Stream, source, destination)
///     .tlv(kind::AUTHORITY, b"example.org")
///     .crc32c()
///     .finish()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "an unfinished header is removed from the buffer"]
pub struct V2Writer<'v> {
    out: &'v mut Vec<u8>,
    start: usize,
    /// The offset of the checksum's value from `start`.
    checksum_at: Option<usize>,
    first_error: Option<WriteError>,
    finished: bool,
}

impl<'v> V2Writer<'v> {
    /// A header for a relayed connection.
    ///
    /// If the ends differ in family, the IPv4 one is mapped into IPv6. Flow and scope of an IPv6 address
    /// aren't part of the format.
    pub fn proxy(
        out: &'v mut Vec<u8>,
        transport: Transport,
        source: SocketAddr,
        destination: SocketAddr,
    ) -> Self {
        let plain = PlainHeader::v2(source, destination);
        let block = plain.address_block();
        let family = if block.len() == V4_BLOCK_LEN {
            INET
        } else {
            INET6
        };
        let mut writer = Self::start(out, PROXY, family | transport_nibble(transport));
        writer.put(&[block]);
        writer
    }

    /// A header for a connection between Unix domain sockets.
    pub fn unix(
        out: &'v mut Vec<u8>,
        transport: Transport,
        source: UnixName<'_>,
        destination: UnixName<'_>,
    ) -> Self {
        let mut writer = Self::start(out, PROXY, UNIX | transport_nibble(transport));
        writer.put(&[source.0, destination.0]);
        writer
    }

    /// A header for the sender's own connection, such as a health check. Receivers skip its TLVs.
    pub fn local(out: &'v mut Vec<u8>) -> Self {
        Self::start(out, LOCAL, UNSPEC)
    }

    /// A header for a connection that can't be described. Receivers skip its TLVs, or refuse the
    /// whole header; they must accept that of [`V2Writer::local`].
    pub fn unspec(out: &'v mut Vec<u8>) -> Self {
        Self::start(out, PROXY, UNSPEC)
    }

    /// Adds a TLV. [`V2Writer::finish`] fails if receivers would refuse it.
    pub fn tlv(mut self, kind: u8, value: &[u8]) -> Self {
        if kind == kind::CRC32C {
            self.first_error.get_or_insert(WriteError::Checksum);
        }
        if let Err(invalid) = (Tlv { kind, value }).check(self.len()) {
            self.first_error.get_or_insert(WriteError::Value(invalid));
        }
        self.put_tlv(kind, value);
        self
    }

    /// Copies the TLVs of another header, except checksum and padding, which belong to that header alone.
    pub fn tlvs(self, tlvs: Tlvs<'_>) -> Self {
        tlvs.iter()
            .filter(|tlv| !matches!(tlv.kind, kind::CRC32C | kind::NOOP))
            .fold(self, |writer, tlv| writer.tlv(tlv.kind, tlv.value))
    }

    /// Adds an SSL TLV about the client's TLS connection: for `client` and `verify` see
    /// [`Ssl`](crate::Ssl), for the details the types `SSL_…` in [`kind`].
    pub fn ssl(mut self, client: u8, verify: u32, details: &[Tlv<'_>]) -> Self {
        let length = details
            .iter()
            .map(|tlv| tlv.value.len().saturating_add(TLV_HEAD))
            .fold(SSL_HEAD, usize::saturating_add);
        self.put_tlv_head(kind::SSL, length);
        self.put(&[&[client], &verify.to_be_bytes()]);
        for tlv in details {
            self.put_tlv(tlv.kind, tlv.value);
        }
        self
    }

    /// Adds a checksum over the whole header, at this position among the TLVs. A second call adds none.
    pub fn crc32c(mut self) -> Self {
        if self.checksum_at.is_none() {
            self.put_tlv_head(kind::CRC32C, crc::LEN);
            self.checksum_at = Some(self.len());
            self.put(&[&[0; crc::LEN]]);
        }
        self
    }

    /// Completes the header and returns its size in bytes.
    ///
    /// # Errors
    ///
    /// [`WriteError::TooLong`] for the whole header, else the first error; the buffer is then as it was before.
    pub fn finish(mut self) -> Result<usize, WriteError> {
        let len = self.len();
        let block = len.saturating_sub(FIXED_LEN);
        let length = u16::try_from(block).map_err(|_| WriteError::TooLong(block))?;
        if let Some(error) = self.first_error {
            return Err(error);
        }
        self.overwrite(LENGTH_AT, &length.to_be_bytes());
        if let Some(at) = self.checksum_at {
            let header = self.out.get(self.start..).unwrap_or_default();
            let checksum = crc::compute(header, at).unwrap_or_default();
            self.overwrite(at, &checksum.to_be_bytes());
        }
        self.finished = true;
        Ok(len)
    }

    fn start(out: &'v mut Vec<u8>, command: u8, family_transport: u8) -> Self {
        let start = out.len();
        let mut writer = Self {
            out,
            start,
            checksum_at: None,
            first_error: None,
            finished: false,
        };
        writer.put(&[&SIGNATURE, &[VERSION | command, family_transport, 0, 0]]);
        writer
    }

    /// Bytes written so far.
    fn len(&self) -> usize {
        self.out.len().saturating_sub(self.start)
    }

    fn put(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.out.extend_from_slice(part);
        }
    }

    fn put_tlv(&mut self, kind: u8, value: &[u8]) {
        self.put_tlv_head(kind, value.len());
        self.put(&[value]);
    }

    fn put_tlv_head(&mut self, kind: u8, length: usize) {
        let length_field = u16::try_from(length).unwrap_or_else(|_| {
            self.first_error.get_or_insert(WriteError::TooLong(length));
            0
        });
        self.put(&[&[kind], &length_field.to_be_bytes()]);
    }

    fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        let header = self.out.get_mut(self.start..).unwrap_or_default();
        for (to, from) in header.iter_mut().skip(at).zip(bytes) {
            *to = *from;
        }
    }
}

impl Drop for V2Writer<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.out.truncate(self.start);
        }
    }
}

fn transport_nibble(transport: Transport) -> u8 {
    match transport {
        Transport::Stream => STREAM,
        Transport::Datagram => DATAGRAM,
    }
}

const LOCAL: u8 = 0;
const UNSPEC: u8 = 0x00;
const UNIX: u8 = 0x30;
const DATAGRAM: u8 = 2;
/// Bytes of two IPv4 addresses and two ports.
const V4_BLOCK_LEN: usize = 12;
/// Offset of the length field, after signature, command and family.
const LENGTH_AT: usize = 14;
/// Bytes of type and length, before each value.
const TLV_HEAD: usize = 3;
/// Bytes of client bits and verification result, before the details.
const SSL_HEAD: usize = 5;
