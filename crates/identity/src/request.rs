//! What a process says to the attendant: one message on a connection of its own.

use core::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::settings::Signature;

/// A message to the attendant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Proves that the sender may read the table.
    pub secret: Signature,
    /// What it wants.
    pub wish: Wish,
}

/// What a process wants of the attendant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Keep the connection that comes along until its header is complete. No answer.
    Park {
        /// The address of the listener that it came to.
        listener: SocketAddr,
    },
    /// Hand over a connection of this listener whose header is complete. The answer is one octet,
    /// with the connection if there is one; it is the asker's once the asker has sent an octet back.
    Take {
        /// The listener's address.
        listener: SocketAddr,
    },
    /// Free the slots of sockets that are closed. No answer.
    Sweep,
    /// Read the refusals ([`crate::RefusalReader`]). No answer.
    Log,
}

impl Request {
    /// Octets of a request.
    pub const LEN: usize = 16 + 1 + 1 + 16 + 2 + 4;

    /// As it is sent.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let nowhere = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0));
        let (kind, listener) = match self.wish {
            Wish::Park { listener } => (b'P', listener),
            Wish::Take { listener } => (b'T', listener),
            Wish::Sweep => (b'S', nowhere),
            Wish::Log => (b'L', nowhere),
        };
        let (ip, scope) = match listener {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        let [first, second] = self.secret.map(u64::to_be_bytes);
        let port = listener.port().to_be_bytes();
        let scope = scope.to_be_bytes();
        let parts: [&[u8]; 7] = [
            &first,
            &second,
            &[kind],
            &[listener.is_ipv4().into()],
            &ip.octets(),
            &port,
            &scope,
        ];
        let mut bytes = [0; Self::LEN];
        let octets = parts.into_iter().flatten();
        bytes
            .iter_mut()
            .zip(octets)
            .for_each(|(to, from)| *to = *from);
        bytes
    }

    /// Reads one; `None` if it is none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (first, rest) = bytes.split_first_chunk()?;
        let (second, rest) = rest.split_first_chunk()?;
        let ([kind, v4], rest) = rest.split_first_chunk()?;
        let (ip, rest) = rest.split_first_chunk::<16>()?;
        let (port, rest) = rest.split_first_chunk()?;
        let (scope, rest) = rest.split_first_chunk()?;
        let (ip, port) = (Ipv6Addr::from(*ip), u16::from_be_bytes(*port));
        let listener = match v4 {
            0 => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, u32::from_be_bytes(*scope))),
            _ => SocketAddr::new(IpAddr::V4(ip.to_ipv4_mapped()?), port),
        };
        let wish = match kind {
            b'P' => Wish::Park { listener },
            b'T' => Wish::Take { listener },
            b'S' => Wish::Sweep,
            b'L' => Wish::Log,
            _ => return None,
        };
        let secret = [first, second].map(|half| u64::from_be_bytes(*half));
        rest.is_empty().then_some(Self { secret, wish })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        for listener in ["192.0.2.1:80", "0.0.0.0:80", "[::]:80", "[fe80::1%3]:443"] {
            let listener = listener.parse().unwrap();
            for wish in [
                Wish::Park { listener },
                Wish::Take { listener },
                Wish::Sweep,
                Wish::Log,
            ] {
                let secret = [1, u64::MAX - 5];
                let request = Request { secret, wish };
                let bytes = request.to_bytes();
                assert_eq!(Request::from_bytes(&bytes), Some(request));
                assert_eq!(Request::from_bytes(&bytes[1..]), None);
            }
        }
    }
}
