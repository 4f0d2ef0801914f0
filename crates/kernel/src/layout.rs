//! Map keys and values as bytes: the structs of `bpf/udp.h`, which asserts the sizes and offsets that this relies on.

use std::net::{IpAddr, SocketAddr};

use crate::address_pair::AddressPair;
use crate::checksum::ChecksumDeltas;

/// `MAX_HEADER_BYTES`.
pub(crate) const MAX_HEADER_BYTES: usize = 256;
/// Role of a local port: `PORT_PROXY_V2`.
pub(crate) const PORT_PROXY_V2: u8 = 1;
/// `PORT_SPP`.
pub(crate) const PORT_SPP: u8 = 2;
/// `PORT_BACKEND`.
pub(crate) const PORT_BACKEND: u8 = 4;
/// Index of `totals`: `TOTAL_REQUESTS`.
pub(crate) const TOTAL_REQUESTS: u32 = 0;
/// `TOTAL_REPLIES`.
pub(crate) const TOTAL_REPLIES: u32 = 1;
/// `TOTAL_FAILED_REQUESTS`.
pub(crate) const TOTAL_FAILED_REQUESTS: u32 = 2;
/// `TOTAL_FAILED_REPLIES`.
pub(crate) const TOTAL_FAILED_REPLIES: u32 = 3;

/// `struct address_pair`.
pub(crate) type AddressPairKey = [u8; 36];
/// `struct request_key`.
pub(crate) type RequestKey = [u8; 76];
/// `struct rewrite`.
pub(crate) type RewriteValue = [u8; 336];

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

/// What the kernel counts for one direction of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowCounters {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
    /// Nanoseconds of CLOCK_MONOTONIC_COARSE.
    pub(crate) last_used: u64,
}

pub(crate) fn address_pair(pair: &AddressPair) -> AddressPairKey {
    let mut key = [0; 36];
    let mut write = Writer(&mut key);
    write.put(&mapped(pair.from));
    write.put(&mapped(pair.to));
    write.put(&pair.from.port().to_be_bytes());
    write.put(&pair.to.port().to_be_bytes());
    key
}

pub(crate) fn request_key(
    addresses: &AddressPair,
    header_addresses: &[u8],
    header_len: u16,
    family: u8,
) -> RequestKey {
    let mut key = [0; 76];
    let mut write = Writer(&mut key);
    write.put(&address_pair(addresses));
    let mut padded = [0; 36];
    Writer(&mut padded).put(header_addresses);
    write.put(&padded);
    write.put(&header_len.to_ne_bytes());
    write.put(&u16::from(family).to_ne_bytes());
    key
}

impl Rewrite<'_> {
    pub(crate) fn encode(&self) -> RewriteValue {
        let mut value = [0; 336];
        let mut write = Writer(&mut value);
        write.put(&address_pair(&self.new_addresses));
        for number in [
            self.deltas.addresses,
            self.deltas.udp,
            self.header.len() as u16,
            self.path_mtu,
        ] {
            write.put(&number.to_ne_bytes());
        }
        write.put(&self.interface.to_ne_bytes());
        write.put(&self.mark.to_ne_bytes());
        // `has_seen_request`: set by the first request.
        write.put(&0_u32.to_ne_bytes());
        write.put(self.header);
        value
    }
}

impl FlowCounters {
    pub(crate) fn decode(value: &RewriteValue) -> Self {
        let number = |at: usize| {
            let bytes = value.get(at..at + 8).and_then(|at| at.try_into().ok());
            bytes.map_or(0, u64::from_ne_bytes)
        };
        Self {
            datagrams: number(312),
            bytes: number(320),
            last_used: number(328),
        }
    }
}

fn mapped(addr: SocketAddr) -> [u8; 16] {
    match addr.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    /// Writes as much as fits.
    fn put(&mut self, bytes: &[u8]) {
        let room = std::mem::take(&mut self.0);
        let len = bytes.len().min(room.len());
        let (here, rest) = room.split_at_mut(len);
        here.copy_from_slice(&bytes[..len]);
        self.0 = rest;
    }
}
