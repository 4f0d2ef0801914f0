//! The wake-up connections of the header waiter: how the library and the supervisor recognize them.
//!
//! Each sends a secret, which no client knows. Until that has come, a wake-up is recognized by its source: its port is listed as
//! long as it is open.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::header_check::Peeked;
use crate::port_set::PortSet;
use crate::settings::{Settings, Word};

impl<'m> Settings<'m> {
    /// The source ports of the header waiter's wake-up connections from this address. There is a set for 127.0.0.1, one for ::1,
    /// and one for the others: a client of this host at another address may have the port of a wake-up.
    pub fn wakeup_ports(self, source: IpAddr) -> PortSet<'m> {
        PortSet::new(match source.to_canonical() {
            IpAddr::V4(Ipv4Addr::LOCALHOST) => self.0.loopback_v4_wakeup_ports,
            IpAddr::V6(Ipv6Addr::LOCALHOST) => self.0.loopback_v6_wakeup_ports,
            _ => self.0.own_wakeup_ports,
        })
    }

    /// Removes every port of a wake-up connection: those of an earlier supervisor, which has closed its connections.
    pub fn clear_wakeup_ports(self) {
        PortSet::new(self.0.loopback_v4_wakeup_ports).clear();
        PortSet::new(self.0.loopback_v6_wakeup_ports).clear();
        PortSet::new(self.0.own_wakeup_ports).clear();
    }

    /// Sets the secret of wake-up connections, unless there is one: a wake-up of an earlier supervisor may be in an accept backlog
    /// still.
    pub fn set_wakeup_secret(self, secret: [u64; 2]) {
        let [first, second] = secret;
        if self.get(Word::WakeupFirst) == 0 {
            // Never 0.
            self.set(Word::WakeupFirst, first | 1);
            self.set(Word::WakeupSecond, second);
        }
    }

    /// The bytes that each wake-up connection sends: random, so that no client begins with them. `None` without a header waiter.
    /// Another program at the listener's address (SO_REUSEPORT) may read them. With them it can have its own connections dropped,
    /// and nothing else.
    pub fn wakeup_secret(self) -> Option<[u8; WAKEUP_SECRET_LEN]> {
        let first = self.get(Word::WakeupFirst);
        let secret = u128::from(first) << 64 | u128::from(self.get(Word::WakeupSecond));
        (first != 0).then_some(secret.to_be_bytes())
    }

    /// Whether a connection from `peer` to `local_ip` is a wake-up connection of this header waiter or of an earlier
    /// supervisor's. Its first bytes decide; as long as none have come, its source does.
    pub fn is_wakeup(
        self,
        peeked: Peeked<'_>,
        peer: SocketAddr,
        local_ip: impl FnOnce() -> Option<IpAddr>,
    ) -> bool {
        match peeked {
            Peeked::Bytes(bytes @ [_, ..]) => self
                .wakeup_secret()
                .is_some_and(|secret| bytes.starts_with(&secret)),
            Peeked::Bytes([]) | Peeked::Nothing => self.has_wakeup_source(peer, local_ip),
            Peeked::Closed => false,
        }
    }

    /// Whether a connection comes from the port of an open wake-up connection, and from 127.0.0.1, ::1 or the address that it goes
    /// to. A program of this host can have the port at any other address of 127.0.0.0/8.
    fn has_wakeup_source(
        self,
        peer: SocketAddr,
        local_ip: impl FnOnce() -> Option<IpAddr>,
    ) -> bool {
        self.wakeup_ports(peer.ip()).contains(peer.port())
            && (is_loopback_source(peer.ip()) || local_ip() == Some(peer.ip()))
    }
}

/// The length of the secret that a wake-up connection sends ([`Settings::is_wakeup`]).
pub const WAKEUP_SECRET_LEN: usize = 16;

/// Whether this is one of the two loopback addresses that wake-up connections come from.
fn is_loopback_source(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Table, zeroed_memory};

    #[test]
    fn wakeup_connections_come_from_loopback_or_from_where_they_go_to() {
        let memory = zeroed_memory(64);
        let settings = Table::new(&memory).unwrap().settings();
        let is_wakeup = |peer: &str, local_ip: &str| {
            settings.is_wakeup(Peeked::Nothing, peer.parse().unwrap(), || {
                local_ip.parse().ok()
            })
        };
        let insert = |source: IpAddr| settings.wakeup_ports(source).insert(4711);
        assert!(insert(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_wakeup("127.0.0.2:4711", "127.0.0.2"));
        assert!(insert(Ipv4Addr::new(192, 0, 2, 1).into()));
        assert!(is_wakeup("127.0.0.1:4711", "192.0.2.1"));
        assert!(is_wakeup("[::ffff:127.0.0.1]:4711", "::ffff:192.0.2.1"));
        assert!(!is_wakeup("[::1]:4711", "2001:db8::1"));
        assert!(insert(Ipv6Addr::LOCALHOST.into()));
        assert!(is_wakeup("[::1]:4711", "2001:db8::1"));
        assert!(is_wakeup("[fe80::1]:4711", "fe80::1"));
        assert!(is_wakeup("127.0.0.2:4711", "127.0.0.2"));
        assert!(!is_wakeup("127.0.0.2:4711", "127.0.0.1"));
        assert!(!is_wakeup("127.0.0.1:4712", "127.0.0.1"));
        assert!(!is_wakeup("192.0.2.2:4711", "192.0.2.1"));
        settings.clear_wakeup_ports();
        assert!(insert(Ipv4Addr::LOCALHOST.into()));
        assert!(insert(Ipv6Addr::LOCALHOST.into()));
        assert!(insert(Ipv4Addr::new(192, 0, 2, 1).into()));
    }

    #[test]
    fn wakeup_connection_is_recognized_by_its_secret_even_after_it_was_closed() {
        let memory = zeroed_memory(64);
        let settings = Table::new(&memory).unwrap().settings();
        let is_wakeup = |peeked| {
            let peer = "127.0.0.1:4711".parse().unwrap();
            settings.is_wakeup(peeked, peer, || None)
        };
        assert!(!is_wakeup(Peeked::Bytes(&[0; WAKEUP_SECRET_LEN])));
        settings.set_wakeup_secret([3, 2]);
        settings.set_wakeup_secret([5, 4]);
        let secret = settings.wakeup_secret().unwrap();
        assert_eq!(secret, [0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert!(is_wakeup(Peeked::Bytes(&secret)));
        assert!(!is_wakeup(Peeked::Bytes(&secret[..15])));
        assert!(!is_wakeup(Peeked::Nothing));
        // A balancer that has the port of a wake-up connection has sent a header.
        let source = Ipv4Addr::LOCALHOST.into();
        assert!(settings.wakeup_ports(source).insert(4711));
        assert!(!is_wakeup(Peeked::Bytes(b"PROXY TCP4 203.0")));
        assert!(!is_wakeup(Peeked::Closed));
        assert!(is_wakeup(Peeked::Nothing));
    }
}
