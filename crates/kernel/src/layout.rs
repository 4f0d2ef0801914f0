//! Keys and values as octets: what `bpf/udp.h` declares, which asserts the sizes and places that are relied on here.

use std::net::{IpAddr, SocketAddr};

use crate::flow::{Deltas, Path};

/// `HEADER_ROOM`.
pub(crate) const HEADER_ROOM: usize = 256;
/// What a port is: `PORT_EACH`.
pub(crate) const PORT_EACH: u8 = 1;
/// `PORT_SPP`.
pub(crate) const PORT_SPP: u8 = 2;
/// `PORT_BACKEND`.
pub(crate) const PORT_BACKEND: u8 = 4;
/// A place of `totals`: `TOTAL_REQUESTS`.
pub(crate) const TOTAL_REQUESTS: u32 = 0;
/// `TOTAL_REPLIES`.
pub(crate) const TOTAL_REPLIES: u32 = 1;
/// `TOTAL_FAILED_REQUESTS`.
pub(crate) const TOTAL_FAILED_REQUESTS: u32 = 2;
/// `TOTAL_FAILED_REPLIES`.
pub(crate) const TOTAL_FAILED_REPLIES: u32 = 3;

/// `struct path`.
pub(crate) type PathKey = [u8; 36];
/// `struct request_key`.
pub(crate) type RequestKey = [u8; 76];
/// `struct rewrite`.
pub(crate) type RewriteValue = [u8; 336];

/// `struct rewrite`, as it is when nothing has gone this way yet.
#[derive(Clone, Debug)]
pub(crate) struct Rewrite<'a> {
    pub(crate) way: Path,
    pub(crate) deltas: Deltas,
    pub(crate) interface: u32,
    pub(crate) mark: u32,
    pub(crate) most: u16,
    /// At most [`HEADER_ROOM`].
    pub(crate) header: &'a [u8],
}

/// What the kernel counts of a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) datagrams: u64,
    pub(crate) octets: u64,
    /// Nanoseconds of CLOCK_MONOTONIC_COARSE.
    pub(crate) used: u64,
}

pub(crate) fn path(path: &Path) -> PathKey {
    let mut key = [0; 36];
    let mut write = Writer(&mut key);
    write.put(&mapped(path.from));
    write.put(&mapped(path.to));
    write.put(&path.from.port().to_be_bytes());
    write.put(&path.to.port().to_be_bytes());
    key
}

pub(crate) fn request_key(by: &Path, said: &[u8], header_len: u16, family: u8) -> RequestKey {
    let mut key = [0; 76];
    let mut write = Writer(&mut key);
    write.put(&path(by));
    let mut padded = [0; 36];
    Writer(&mut padded).put(said);
    write.put(&padded);
    write.put(&header_len.to_ne_bytes());
    write.put(&u16::from(family).to_ne_bytes());
    key
}

impl Rewrite<'_> {
    pub(crate) fn octets(&self) -> RewriteValue {
        let mut value = [0; 336];
        let mut write = Writer(&mut value);
        write.put(&path(&self.way));
        for number in [
            self.deltas.addresses,
            self.deltas.udp,
            self.header.len() as u16,
            self.most,
        ] {
            write.put(&number.to_ne_bytes());
        }
        write.put(&self.interface.to_ne_bytes());
        write.put(&self.mark.to_ne_bytes());
        // `is_open`: by the first request that goes this way.
        write.put(&0_u32.to_ne_bytes());
        write.put(self.header);
        value
    }
}

impl Counted {
    pub(crate) fn of(value: &RewriteValue) -> Self {
        let number = |at: usize| {
            let octets = value.get(at..at + 8).and_then(|at| at.try_into().ok());
            octets.map_or(0, u64::from_ne_bytes)
        };
        Self {
            datagrams: number(312),
            octets: number(320),
            used: number(328),
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
    /// Writes what there is room for.
    fn put(&mut self, octets: &[u8]) {
        let room = std::mem::take(&mut self.0);
        let len = octets.len().min(room.len());
        let (here, rest) = room.split_at_mut(len);
        here.copy_from_slice(&octets[..len]);
        self.0 = rest;
    }
}
