//! A request to the header waiter: one message, on a connection of its own.

use core::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::settings::Secret;

/// A message to the header waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterRequest {
    /// Proves that the sender may read the table.
    pub secret: Secret,
    /// The requested action.
    pub action: WaiterAction,
}

/// A request's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaiterAction {
    /// Park the passed connection until its header is complete. No answer.
    Park {
        /// The address of the connection's listener.
        listener: SocketAddr,
    },
    /// Hand over a ready connection of this listener (its header is complete). The answer is one byte, with the
    /// connection if there is one; the handoff is complete once the requester has sent a byte back.
    Take {
        /// The listener's address.
        listener: SocketAddr,
    },
    /// Free the slots of sockets that are closed. No answer.
    Sweep,
    /// Read the refusals ([`crate::RefusalReader`]). No answer.
    Log,
}

impl WaiterRequest {
    /// Bytes of a request.
    pub const LEN: usize = 16 + 1 + 1 + 16 + 2 + 4;

    /// Encodes the request.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let unspecified = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0));
        let (kind, listener) = match self.action {
            WaiterAction::Park { listener } => (b'P', listener),
            WaiterAction::Take { listener } => (b'T', listener),
            WaiterAction::Sweep => (b'S', unspecified),
            WaiterAction::Log => (b'L', unspecified),
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
        let source = parts.into_iter().flatten();
        bytes
            .iter_mut()
            .zip(source)
            .for_each(|(to, from)| *to = *from);
        bytes
    }

    /// Decodes a request; `None` if the bytes are not a request.
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
        let action = match kind {
            b'P' => WaiterAction::Park { listener },
            b'T' => WaiterAction::Take { listener },
            b'S' => WaiterAction::Sweep,
            b'L' => WaiterAction::Log,
            _ => return None,
        };
        let secret = [first, second].map(|half| u64::from_be_bytes(*half));
        rest.is_empty().then_some(Self { secret, action })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_encoding_and_decoding() {
        for listener in ["192.0.2.1:80", "0.0.0.0:80", "[::]:80", "[fe80::1%3]:443"] {
            let listener = listener.parse().unwrap();
            for action in [
                WaiterAction::Park { listener },
                WaiterAction::Take { listener },
                WaiterAction::Sweep,
                WaiterAction::Log,
            ] {
                let secret = [1, u64::MAX - 5];
                let request = WaiterRequest { secret, action };
                let bytes = request.to_bytes();
                assert_eq!(WaiterRequest::from_bytes(&bytes), Some(request));
                assert_eq!(WaiterRequest::from_bytes(&bytes[1..]), None);
            }
        }
    }
}
