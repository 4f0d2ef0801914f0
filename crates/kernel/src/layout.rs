//! Map keys and values as bytes: the constants and structs of `bpf/udp.h`, which asserts their sizes and offsets.

use std::net::{IpAddr, SocketAddr};

use crate::address_pair::AddressPair;
use crate::checksum::ChecksumDeltas;

/// The longest PROXY header that is compared.
pub(crate) const MAX_HEADER_BYTES: usize = 256;

// Roles of a local port.
pub(crate) const PORT_PROXY_V2: u8 = 1;
pub(crate) const PORT_SPP: u8 = 2;
pub(crate) const PORT_BACKEND: u8 = 4;

/// `struct address_pair`.
pub(crate) type AddressPairKey = [u8; 36];
/// `struct request_key`.
pub(crate) type RequestKey = [u8; 76];
/// `struct rewrite`.
pub(crate) type RewriteValue = [u8; 344];

/// `struct rewrite`, before any datagram has matched it.
#[derive(Clone, Debug)]
pub(crate) struct Rewrite<'a> {
    pub(crate) new_addresses: AddressPair,
    pub(crate) deltas: ChecksumDeltas,
    pub(crate) interface: u32,
    pub(crate) mark: u32,
    pub(crate) path_mtu: u16,
    /// At most [`MAX_HEADER_BYTES`].
    pub(crate) header: &'a [u8],
}

/// The kernel's counters of one direction of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowCounters {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
    /// Nanoseconds of CLOCK_MONOTONIC_COARSE.
    pub(crate) last_used: u64,
}

pub(crate) fn address_pair(pair: &AddressPair) -> AddressPairKey {
    let mut key = [0; 36];
    let mut writer = Writer(&mut key);
    writer.put(&to_ipv6_bytes(pair.from));
    writer.put(&to_ipv6_bytes(pair.to));
    writer.put(&pair.from.port().to_be_bytes());
    writer.put(&pair.to.port().to_be_bytes());
    key
}

pub(crate) fn request_key(
    addresses: &AddressPair,
    header_addresses: &[u8],
    header_len: u16,
    family: u8,
) -> RequestKey {
    let mut key = [0; 76];
    let mut writer = Writer(&mut key);
    writer.put(&address_pair(addresses));
    let mut padded = [0; 36];
    Writer(&mut padded).put(header_addresses);
    writer.put(&padded);
    writer.put(&header_len.to_ne_bytes());
    writer.put(&u16::from(family).to_ne_bytes());
    key
}

impl Rewrite<'_> {
    /// Encodes the value with the number of this installation, which no other of this map has.
    pub(crate) fn encode(&self, installation: u64) -> RewriteValue {
        let mut value = [0; 344];
        let mut writer = Writer(&mut value);
        writer.put(&address_pair(&self.new_addresses));
        for number in [
            self.deltas.addresses,
            self.deltas.udp,
            self.header.len() as u16,
            self.path_mtu,
        ] {
            writer.put(&number.to_ne_bytes());
        }
        writer.put(&self.interface.to_ne_bytes());
        writer.put(&self.mark.to_ne_bytes());
        // `has_seen_request`: the kernel's program sets it at the first request.
        writer.put(&0_u32.to_ne_bytes());
        writer.put(&installation.to_ne_bytes());
        writer.put(self.header);
        value
    }
}

impl FlowCounters {
    pub(crate) fn decode(value: &RewriteValue) -> Self {
        let read = |offset: usize| {
            let bytes = value.get(offset..offset + 8);
            bytes
                .and_then(|bytes| bytes.try_into().ok())
                .map_or(0, u64::from_ne_bytes)
        };
        Self {
            datagrams: read(COUNTERS_OFFSET),
            bytes: read(COUNTERS_OFFSET + 8),
            last_used: read(COUNTERS_OFFSET + 16),
        }
    }
}

/// Offset of the counters in `struct rewrite`: `datagrams`, `bytes` and `last_used`.
const COUNTERS_OFFSET: usize = 320;

/// The IPv6 address, or the IPv4-mapped IPv6 address.
fn to_ipv6_bytes(addr: SocketAddr) -> [u8; 16] {
    match addr.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Fills a buffer from its beginning.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    /// Appends as many of the bytes as fit.
    fn put(&mut self, bytes: &[u8]) {
        let free = std::mem::take(&mut self.0);
        let len = bytes.len().min(free.len());
        let (written, rest) = free.split_at_mut(len);
        written.copy_from_slice(&bytes[..len]);
        self.0 = rest;
    }
}
