//! Cloudflare's Simple Proxy Protocol, UDP only: 38 bytes in front of each datagram, both ways.
//!
//! A reply carries the header of the request unchanged, client first: the addresses are not swapped. The
//! proxy finds the client by this header.
//! Source: Cloudflare's documentation of Spectrum, "Simple Proxy Protocol".

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::invalid::Invalid;

/// One header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spp {
    /// The client.
    pub client: SocketAddr,
    /// The proxy's address, which the client sent to.
    pub proxy: SocketAddr,
}

impl Spp {
    /// Bytes of each header. It is fixed: the format has neither version nor length.
    pub const LEN: usize = 38;

    /// Reads the header at the start of a datagram; the payload starts at [`Spp::LEN`].
    ///
    /// Addresses in `::ffff:0:0/96` are IPv4, as the format defines them.
    ///
    /// # Errors
    ///
    /// [`Invalid::SppTruncated`] and [`Invalid::SppMagic`]: drop the datagram.
    pub fn parse(datagram: &[u8]) -> Result<Self, Invalid> {
        match datagram {
            [a, b, ..] if [*a, *b] != MAGIC => Err(Invalid::SppMagic(u16::from_be_bytes([*a, *b]))),
            _ => Self::parse_fields(datagram).ok_or(Invalid::SppTruncated {
                have: datagram.len(),
            }),
        }
    }

    fn parse_fields(datagram: &[u8]) -> Option<Self> {
        let (_magic, rest) = datagram.split_first_chunk::<2>()?;
        let (client, rest) = rest.split_first_chunk::<16>()?;
        let (proxy, rest) = rest.split_first_chunk::<16>()?;
        let ([c0, c1, p0, p1], _payload) = rest.split_first_chunk::<4>()?;
        Some(Self {
            client: address(*client, u16::from_be_bytes([*c0, *c1])),
            proxy: address(*proxy, u16::from_be_bytes([*p0, *p1])),
        })
    }

    /// Encodes the header for a datagram to the backend, or for its reply: both carry the same bytes.
    ///
    /// A parsed header is encoded to exactly the bytes that it was parsed from.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let parts: [&[u8]; 5] = [
            &MAGIC,
            &octets_as_ipv6(self.client.ip()),
            &octets_as_ipv6(self.proxy.ip()),
            &self.client.port().to_be_bytes(),
            &self.proxy.port().to_be_bytes(),
        ];
        let mut bytes = [0; Self::LEN];
        for (to, from) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }
}

fn address(octets: [u8; 16], port: u16) -> SocketAddr {
    let v6 = Ipv6Addr::from(octets);
    let ip = v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4);
    SocketAddr::new(ip, port)
}

fn octets_as_ipv6(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The first two bytes of each header.
pub(crate) const MAGIC: [u8; 2] = [0x56, 0xec];
