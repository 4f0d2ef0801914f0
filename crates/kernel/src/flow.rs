//! One session's datagrams, as the kernel is told about them.

use std::net::{IpAddr, SocketAddr};

use peername_proto::{Spp, V2_SIGNATURE};
use peername_sys::netlink::LOOPBACK;

use crate::layout;
use crate::sums::Sum;

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Source.
    pub from: SocketAddr,
    /// Destination.
    pub to: SocketAddr,
}

/// What was decided about a session.
#[derive(Clone, Debug)]
pub struct Flow<'a> {
    /// How requests come: from the balancer to this host.
    pub downstream: Path,
    /// The header of each request, which is removed: PROXY v2 or Simple Proxy Protocol.
    pub header: &'a [u8],
    /// How requests go on: from the client to a backend on this host.
    pub upstream: Path,
    /// What is put in front of each reply.
    pub reply_header: &'a [u8],
    /// Index of the device that requests come in by and replies leave by.
    pub interface: u32,
    /// The largest IP packet that goes all the way back, in octets.
    pub most: u16,
    /// SO_MARK of requests; 0 for none.
    pub mark: u32,
}

/// The formats of headers that the kernel's program removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// PROXY v2.
    ProxyV2,
    /// Cloudflare's Simple Proxy Protocol.
    Spp,
}

/// A [`Flow`] in the shapes of `bpf/udp.h`.
#[derive(Clone, Debug)]
pub(crate) struct Written<'a> {
    pub(crate) request_key: layout::RequestKey,
    pub(crate) request: layout::Rewrite<'a>,
    pub(crate) reply_key: layout::PathKey,
    pub(crate) reply: layout::Rewrite<'a>,
}

impl Path {
    fn back(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
        }
    }

    fn is_v4(&self) -> bool {
        self.from.ip().to_canonical().is_ipv4() && self.to.ip().to_canonical().is_ipv4()
    }

    fn is_v6(&self) -> bool {
        let is_v6 = |addr: SocketAddr| addr.ip().to_canonical().is_ipv6();
        is_v6(self.from) && is_v6(self.to)
    }

    /// Whether routes alone say where its ends are.
    fn is_routed(&self) -> bool {
        let is_link_local =
            |addr: SocketAddr| matches!(addr.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
        !is_link_local(self.from) && !is_link_local(self.to)
    }
}

impl Flow<'_> {
    /// Whether the kernel's program can do this. It can't change the family of a packet, has bounded room for
    /// headers, and adds up headers of even length only.
    pub fn is_for_kernel(&self) -> bool {
        let both = |of: fn(&Path) -> bool| of(&self.downstream) && of(&self.upstream);
        (both(Path::is_v4) || both(Path::is_v6))
            && both(Path::is_routed)
            && [self.header, self.reply_header]
                .iter()
                .all(|header| header.len().is_multiple_of(2))
            && self.header.len() <= layout::HEADER_ROOM
            && self.reply_header.len() <= Spp::LEN
            && match self.format() {
                Some(Format::ProxyV2) => self
                    .header
                    .get(13)
                    .is_some_and(|family| *family == 0x12 || *family == 0x22),
                Some(Format::Spp) => self.header.len() == Spp::LEN,
                None => false,
            }
    }

    /// Whether requests are IPv4, and come in by another device than loopback.
    pub(crate) fn goes_on_loopback(&self) -> bool {
        self.interface != LOOPBACK && self.downstream.is_v4()
    }

    pub(crate) fn write(&self) -> Written<'_> {
        let (answer, back) = (self.upstream.back(), self.downstream.back());
        let header_len = self.header.len() as u16;
        Written {
            request_key: layout::request_key(
                &self.downstream,
                self.said(),
                header_len,
                self.family(),
            ),
            request: layout::Rewrite {
                way: self.upstream,
                deltas: Deltas::new(&self.downstream, &self.upstream, Change::Off(self.header)),
                interface: self.interface,
                mark: self.mark,
                most: 0,
                header: self.header,
            },
            reply_key: layout::path(&answer),
            reply: layout::Rewrite {
                way: back,
                deltas: Deltas::new(&answer, &back, Change::On(self.reply_header)),
                interface: self.interface,
                mark: 0,
                most: self.most,
                header: self.reply_header,
            },
        }
    }

    /// The format of requests' header, by its first bytes; `None` for one that the program does not know.
    pub(crate) fn format(&self) -> Option<Format> {
        if self.header.starts_with(&V2_SIGNATURE) {
            Some(Format::ProxyV2)
        } else {
            Spp::parse(self.header).is_ok().then_some(Format::Spp)
        }
    }

    /// The address family of a PROXY v2 header; 0 for another.
    fn family(&self) -> u8 {
        match self.format() {
            Some(Format::ProxyV2) => self.header.get(13).copied().unwrap_or_default(),
            Some(Format::Spp) | None => 0,
        }
    }

    /// The addresses and ports in the header.
    fn said(&self) -> &[u8] {
        let at = match (self.format(), self.header.get(13)) {
            (Some(Format::Spp), _) => 2..Spp::LEN,
            (_, Some(0x12)) => 16..28,
            (_, _) => 16..52,
        };
        self.header.get(at).unwrap_or_default()
    }
}

/// What a packet's sums change by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deltas {
    /// That of addresses and one length: the IPv4 header's, and that of UDP's pseudo header.
    pub(crate) addresses: u16,
    /// UDP's.
    pub(crate) udp: u16,
}

enum Change<'a> {
    /// This is taken off.
    Off(&'a [u8]),
    /// This is put in front.
    On(&'a [u8]),
}

impl Deltas {
    fn new(old: &Path, new: &Path, change: Change<'_>) -> Self {
        let addresses = Sum::default().plus(&octets(new)).minus(&octets(old));
        let ports = |sum: Sum| {
            sum.plus_number(new.from.port())
                .plus_number(new.to.port())
                .minus_number(old.from.port())
                .minus_number(old.to.port())
        };
        // The length stands once in IP's header and once in UDP's pseudo header, and once more in UDP's own.
        let (addresses, udp) = match change {
            Change::Off(header) => {
                let len = header.len() as u16;
                let once = addresses.minus_number(len);
                (once, ports(once.minus_number(len)).minus(header))
            }
            Change::On(header) => {
                let len = header.len() as u16;
                let once = addresses.plus_number(len);
                (once, ports(once.plus_number(len)).plus(header))
            }
        };
        Self {
            addresses: addresses.folded(),
            udp: udp.folded(),
        }
    }
}

/// Both addresses, as they stand in a packet.
fn octets(path: &Path) -> Vec<u8> {
    let ips = [path.from.ip().to_canonical(), path.to.ip().to_canonical()];
    let octets = ips.map(|ip| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    });
    octets.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: [u8; 28] = [
        13, 10, 13, 10, 0, 13, 10, 81, 85, 73, 84, 10, 0x21, 0x12, 0, 12, 203, 0, 113, 9, 198, 51,
        100, 1, 0x12, 0x34, 0, 53,
    ];

    fn path(from: &str, to: &str) -> Path {
        Path {
            from: from.parse().expect("an address"),
            to: to.parse().expect("an address"),
        }
    }

    fn flow(downstream: Path, upstream: Path, reply_header: &[u8]) -> Flow<'_> {
        Flow {
            downstream,
            header: &HEADER,
            upstream,
            reply_header,
            interface: 2,
            most: 1500,
            mark: 0,
        }
    }

    /// The sums of the IPv4 header, of the pseudo header and of UDP, of a datagram on its way: added up whole.
    fn sums(path: &Path, payload: &[u8]) -> [u16; 3] {
        let (len, ip_len) = (payload.len() as u16 + 8, payload.len() as u16 + 28);
        let addresses = |sum: Sum| sum.plus(&octets(path));
        let pseudo = addresses(Sum::default().plus_number(17).plus_number(len));
        let udp = pseudo
            .plus_number(path.from.port())
            .plus_number(path.to.port())
            .plus_number(len)
            .plus(payload);
        let ip = addresses(
            Sum::default()
                .plus(&[0x45, 0])
                .plus_number(ip_len)
                .plus(&[64, 17]),
        );
        [ip, pseudo, udp].map(Sum::folded)
    }

    fn changed([ip, pseudo, udp]: [u16; 3], deltas: Deltas) -> [u16; 3] {
        let plus = |sum: u16, delta: u16| {
            let sum = Sum::default().plus(&sum.to_ne_bytes());
            sum.plus(&delta.to_ne_bytes()).folded()
        };
        [
            plus(ip, deltas.addresses),
            plus(pseudo, deltas.addresses),
            plus(udp, deltas.udp),
        ]
    }

    #[test]
    fn sums_change_as_if_added_up_anew() {
        let v4 = (
            path("10.81.0.2:40000", "10.81.0.1:8443"),
            path("203.0.113.9:4660", "127.0.0.1:53"),
        );
        let v6 = (
            path("[fd81::2]:40000", "[fd81::1]:8443"),
            path("[2001:db8::ffff]:65535", "[::1]:53"),
        );
        let mapped = (path("[::ffff:10.81.0.2]:1", "[::ffff:10.81.0.1]:2"), v4.1);
        for (downstream, upstream) in [v4, v6, mapped] {
            for payload in [&b""[..], b"x", b"odd", &[0xff; 1001]] {
                let flow = flow(downstream, upstream, &HEADER);
                let written = flow.write();
                let request = [&HEADER, payload].concat();
                assert_eq!(
                    changed(sums(&downstream, &request), written.request.deltas),
                    sums(&upstream, payload)
                );
                assert_eq!(
                    changed(sums(&upstream.back(), payload), written.reply.deltas),
                    sums(&downstream.back(), &request)
                );
            }
        }
    }

    #[test]
    fn what_is_not_for_the_kernel() {
        let v4 = path("10.81.0.2:40000", "10.81.0.1:8443");
        let client = path("203.0.113.9:4660", "127.0.0.1:53");
        assert!(flow(v4, client, &[]).is_for_kernel());
        let v6 = path("[fd81::2]:40000", "[fd81::1]:8443");
        assert!(!flow(v6, client, &[]).is_for_kernel());
        assert!(!flow(v4, client, &[0; 37]).is_for_kernel());
        assert!(!flow(v4, client, &[0; 40]).is_for_kernel());
        let link_local = path("[fe80::2]:40000", "[fd81::1]:8443");
        let v6_client = path("[2001:db8::1]:1", "[::1]:53");
        assert!(flow(v6, v6_client, &[]).is_for_kernel());
        assert!(!flow(link_local, v6_client, &[]).is_for_kernel());
        let long = [&HEADER[..], &[0; 230]].concat();
        for header in [&[][..], &HEADER[..13], &[0; 28], &long] {
            let flow = Flow {
                header,
                ..flow(v4, client, &[])
            };
            assert!(!flow.is_for_kernel(), "{header:?}");
        }
    }
}
