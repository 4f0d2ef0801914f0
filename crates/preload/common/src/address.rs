//! Socket addresses as the kernel writes them.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A `struct sockaddr` of any family.
#[derive(Clone, Copy, Debug)]
pub struct RawAddress {
    /// The structure, padded with zeros.
    pub bytes: [u8; Self::SIZE],
    /// The length that the kernel reports.
    pub len: u32,
}

impl RawAddress {
    /// Bytes of a `struct sockaddr_storage`.
    pub const SIZE: usize = 128;
    /// A buffer without an address.
    pub const EMPTY: Self = Self {
        bytes: [0; Self::SIZE],
        len: 0,
    };

    /// Encodes a `struct sockaddr_in` or `struct sockaddr_in6` (ip(7), ipv6(7)).
    pub fn new(address: SocketAddr) -> Self {
        let mut raw = Self::EMPTY;
        let port = address.port().to_be_bytes();
        match address {
            SocketAddr::V4(v4) => {
                raw.put(&[&AF_INET.to_ne_bytes(), &port, &v4.ip().octets()]);
                raw.len = SOCKADDR_IN_LEN;
            }
            SocketAddr::V6(v6) => {
                let (flow, scope) = (v6.flowinfo().to_be_bytes(), v6.scope_id().to_ne_bytes());
                raw.put(&[
                    &AF_INET6.to_ne_bytes(),
                    &port,
                    &flow,
                    &v6.ip().octets(),
                    &scope,
                ]);
                raw.len = SOCKADDR_IN6_LEN;
            }
        }
        raw
    }

    /// Decodes an IPv4 or IPv6 address; `None` for every other family. As in the kernel, a `struct sockaddr_in6` may lack its
    /// scope, or a part of it, which is zero then.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        let (family, rest) = self.bytes.split_first_chunk()?;
        let (port, rest) = rest.split_first_chunk()?;
        let port = u16::from_be_bytes(*port);
        match u16::from_ne_bytes(*family) {
            AF_INET if self.len >= SOCKADDR_IN_LEN => {
                let (ip, _) = rest.split_first_chunk::<4>()?;
                Some(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from(*ip), port)))
            }
            AF_INET6 if self.len >= SOCKADDR_IN6_MIN_LEN => {
                let (flow, rest) = rest.split_first_chunk()?;
                let (ip, rest) = rest.split_first_chunk::<16>()?;
                let (scope, _) = rest.split_first_chunk()?;
                let has_scope = self.len >= SOCKADDR_IN6_LEN;
                let scope = if has_scope { *scope } else { [0; 4] };
                Some(SocketAddr::V6(SocketAddrV6::new(
                    Ipv6Addr::from(*ip),
                    port,
                    u32::from_be_bytes(*flow),
                    u32::from_ne_bytes(scope),
                )))
            }
            _ => None,
        }
    }

    fn put(&mut self, parts: &[&[u8]]) {
        for (to, from) in self.bytes.iter_mut().zip(parts.iter().copied().flatten()) {
            *to = *from;
        }
    }
}

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
/// The size of `struct sockaddr_in`.
const SOCKADDR_IN_LEN: u32 = 16;
/// The size of `struct sockaddr_in6`.
const SOCKADDR_IN6_LEN: u32 = 28;
/// Its size in RFC 2133, without the scope, which connect(2) and bind(2) accept (SIN6_LEN_RFC2133).
const SOCKADDR_IN6_MIN_LEN: u32 = 24;
