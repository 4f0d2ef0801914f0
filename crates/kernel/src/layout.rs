//! Keys and values as octets: what `bpf/udp.h` declares, which asserts the sizes and places that are relied on here.

use std::net::{IpAddr, SocketAddr};

use crate::flow::{Deltas, Path};

/// `HEADER_ROOM`.
pub(crate) const HEADER_ROOM: usize = 256;
/// The length of a Simple Proxy Protocol header.
pub(crate) const SPP_LEN: usize = 38;

/// `struct path`.
pub(crate) type PathKey = [u8; 36];
/// `struct request_key`.
pub(crate) type RequestKey = [u8; 76];
/// `struct rewrite`.
pub(crate) type RewriteValue = [u8; 336];

/// `struct rewrite`.
#[derive(Clone, Debug)]
pub(crate) struct Rewrite {
    pub(crate) way: PathKey,
    pub(crate) deltas: Deltas,
    pub(crate) header_len: u16,
    pub(crate) interface: u32,
    pub(crate) mark: u32,
    pub(crate) most: u16,
    pub(crate) header: [u8; HEADER_ROOM],
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

impl Rewrite {
    pub(crate) fn new(way: &Path, header: &[u8], interface: u32, mark: u32) -> Self {
        let mut padded = [0; HEADER_ROOM];
        Writer(&mut padded).put(header);
        Self {
            way: path(way),
            deltas: Deltas::NONE,
            header_len: 0,
            interface,
            mark,
            most: 0,
            header: padded,
        }
    }

    pub(crate) fn octets(&self) -> RewriteValue {
        let mut value = [0; 336];
        let mut write = Writer(&mut value);
        write.put(&self.way);
        for number in [
            self.deltas.ip,
            self.deltas.udp,
            self.deltas.pseudo,
            self.header_len,
        ] {
            write.put(&number.to_ne_bytes());
        }
        write.put(&self.interface.to_ne_bytes());
        write.put(&self.mark.to_ne_bytes());
        write.put(&self.most.to_ne_bytes());
        // It is opened by the first request that goes this way.
        write.put(&0_u16.to_ne_bytes());
        write.put(&self.header);
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
