//! An offloaded flow: the decision about one session, by which the kernel carries its datagrams.

use peername_proto::{Spp, V2_SIGNATURE};
use peername_sys::netlink::LOOPBACK;

use crate::address_pair::AddressPair;
use crate::checksum::{ChecksumDeltas, HeaderChange};
use crate::layout;

/// The header formats that the kernel's program strips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderFormat {
    /// PROXY protocol v2.
    ProxyV2,
    /// Cloudflare's Simple Proxy Protocol.
    Spp,
}

/// A flow to offload: what user space has decided about a session.
#[derive(Clone, Debug)]
pub struct Flow<'a> {
    /// Addresses of requests as received: from the balancer to this host.
    pub downstream: AddressPair,
    /// The header that each request begins with, and that is stripped: PROXY v2 or Simple Proxy Protocol.
    pub header: &'a [u8],
    /// Addresses of requests as forwarded: from the client to a backend on this host.
    pub upstream: AddressPair,
    /// The header that is prepended to each reply.
    pub reply_header: &'a [u8],
    /// Index of the ingress interface of requests, which is the egress interface of replies.
    pub interface: u32,
    /// The path MTU of replies: the largest IP packet, in bytes.
    pub path_mtu: u16,
    /// SO_MARK of requests; 0 for none.
    pub mark: u32,
}

/// A [`Flow`] as keys and values of the maps in `bpf/udp.h`.
#[derive(Clone, Debug)]
pub(crate) struct EncodedFlow<'a> {
    pub(crate) request_key: layout::RequestKey,
    pub(crate) request: layout::Rewrite<'a>,
    pub(crate) reply_key: layout::AddressPairKey,
    pub(crate) reply: layout::Rewrite<'a>,
}

impl Flow<'_> {
    /// Whether the kernel's program can carry this flow: its addresses, its headers' lengths and its requests' header.
    pub fn is_offloadable(&self) -> bool {
        self.has_offloadable_addresses()
            && self.has_offloadable_lengths()
            && self.has_known_header()
    }

    /// Whether all addresses are routable, and of one family: the program can't change the family of a packet.
    fn has_offloadable_addresses(&self) -> bool {
        let pairs = [&self.downstream, &self.upstream];
        let is_one_family =
            pairs.iter().all(|pair| pair.is_v4()) || pairs.iter().all(|pair| pair.is_v6());
        is_one_family && pairs.iter().all(|pair| pair.is_routable())
    }

    /// Whether both headers are short enough for the program, and of even length: it computes checksums of 16-bit words.
    fn has_offloadable_lengths(&self) -> bool {
        let (request, reply) = (self.header.len(), self.reply_header.len());
        request <= layout::MAX_HEADER_BYTES
            && reply <= Spp::LEN
            && request.is_multiple_of(2)
            && reply.is_multiple_of(2)
    }

    /// Whether the program knows the format of the requests' header. A PROXY v2 header must name UDP.
    fn has_known_header(&self) -> bool {
        match self.header_format() {
            Some(HeaderFormat::ProxyV2) => matches!(self.family(), UDP_OVER_V4 | UDP_OVER_V6),
            Some(HeaderFormat::Spp) => self.header.len() == Spp::LEN,
            None => false,
        }
    }

    /// Whether requests are IPv4 and are redirected from another device to loopback.
    pub(crate) fn is_redirected_to_loopback(&self) -> bool {
        self.interface != LOOPBACK && self.downstream.is_v4()
    }

    pub(crate) fn encode(&self) -> EncodedFlow<'_> {
        let received_reply = self.upstream.reversed();
        let sent_reply = self.downstream.reversed();
        let header_len = self.header.len() as u16;
        let stripped = HeaderChange::Stripped(self.header);
        let prepended = HeaderChange::Prepended(self.reply_header);
        EncodedFlow {
            request_key: layout::request_key(
                &self.downstream,
                self.header_addresses(),
                header_len,
                self.family(),
            ),
            request: layout::Rewrite {
                new_addresses: self.upstream,
                deltas: ChecksumDeltas::new(&self.downstream, &self.upstream, stripped),
                interface: self.interface,
                mark: self.mark,
                path_mtu: 0,
                header: self.header,
            },
            reply_key: layout::address_pair(&received_reply),
            reply: layout::Rewrite {
                new_addresses: sent_reply,
                deltas: ChecksumDeltas::new(&received_reply, &sent_reply, prepended),
                interface: self.interface,
                mark: 0,
                path_mtu: self.path_mtu,
                header: self.reply_header,
            },
        }
    }

    /// The format of the requests' header, by its first bytes; `None` for a format that the program does not know.
    pub(crate) fn header_format(&self) -> Option<HeaderFormat> {
        if self.header.starts_with(&V2_SIGNATURE) {
            Some(HeaderFormat::ProxyV2)
        } else {
            Spp::parse(self.header).is_ok().then_some(HeaderFormat::Spp)
        }
    }

    /// The family and transport byte of a PROXY v2 header; 0 for another format.
    fn family(&self) -> u8 {
        match self.header_format() {
            Some(HeaderFormat::ProxyV2) => self.header.get(V2_FAMILY).copied().unwrap_or_default(),
            Some(HeaderFormat::Spp) | None => 0,
        }
    }

    /// The addresses and ports in the header.
    fn header_addresses(&self) -> &[u8] {
        let range = match (self.header_format(), self.family()) {
            (Some(HeaderFormat::Spp), _) => SPP_MAGIC_BYTES..Spp::LEN,
            (_, UDP_OVER_V4) => V2_ADDRESSES..V2_ADDRESSES + 12,
            (_, _) => V2_ADDRESSES..V2_ADDRESSES + 36,
        };
        self.header.get(range).unwrap_or_default()
    }
}

/// Offset of the family and transport byte in a PROXY v2 header.
const V2_FAMILY: usize = 13;
/// Offset of the addresses in a PROXY v2 header.
const V2_ADDRESSES: usize = 16;
/// Values of the family and transport byte.
const UDP_OVER_V4: u8 = 0x12;
const UDP_OVER_V6: u8 = 0x22;
/// Length of the magic number, with which a Simple Proxy Protocol header begins.
const SPP_MAGIC_BYTES: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Sum;

    const HEADER: [u8; 28] = [
        13, 10, 13, 10, 0, 13, 10, 81, 85, 73, 84, 10, 0x21, 0x12, 0, 12, 203, 0, 113, 9, 198, 51,
        100, 1, 0x12, 0x34, 0, 53,
    ];

    fn pair(from: &str, to: &str) -> AddressPair {
        AddressPair {
            from: from.parse().expect("an address"),
            to: to.parse().expect("an address"),
        }
    }

    fn flow(downstream: AddressPair, upstream: AddressPair, reply_header: &[u8]) -> Flow<'_> {
        Flow {
            downstream,
            header: &HEADER,
            upstream,
            reply_header,
            interface: 2,
            path_mtu: 1500,
            mark: 0,
        }
    }

    /// The sums of the IPv4 header, of the pseudo header and of UDP, computed over a whole datagram.
    fn sums(pair: &AddressPair, payload: &[u8]) -> [u16; 3] {
        let (udp_len, ip_len) = (payload.len() as u16 + 8, payload.len() as u16 + 28);
        let addresses = Sum::default().add(&pair.ip_bytes());
        let pseudo = addresses.add_number(17).add_number(udp_len);
        let udp = pseudo
            .add_number(pair.from.port())
            .add_number(pair.to.port())
            .add_number(udp_len)
            .add(payload);
        let ip = addresses.add(&[0x45, 0]).add_number(ip_len).add(&[64, 17]);
        [ip, pseudo, udp].map(Sum::folded)
    }

    /// Adds the deltas as the kernel's program does.
    fn apply([ip, pseudo, udp]: [u16; 3], deltas: ChecksumDeltas) -> [u16; 3] {
        let add = |sum: u16, delta: u16| {
            Sum::default()
                .add(&sum.to_ne_bytes())
                .add(&delta.to_ne_bytes())
                .folded()
        };
        [
            add(ip, deltas.addresses),
            add(pseudo, deltas.addresses),
            add(udp, deltas.udp),
        ]
    }

    #[test]
    fn checksum_deltas_equal_a_full_computation() {
        let v4 = (
            pair("10.81.0.2:40000", "10.81.0.1:8443"),
            pair("203.0.113.9:4660", "127.0.0.1:53"),
        );
        let v6 = (
            pair("[fd81::2]:40000", "[fd81::1]:8443"),
            pair("[2001:db8::ffff]:65535", "[::1]:53"),
        );
        let mapped = (pair("[::ffff:10.81.0.2]:1", "[::ffff:10.81.0.1]:2"), v4.1);
        for (downstream, upstream) in [v4, v6, mapped] {
            for payload in [&b""[..], b"x", b"odd", &[0xff; 1001]] {
                let flow = flow(downstream, upstream, &HEADER);
                let encoded = flow.encode();
                let request = [&HEADER, payload].concat();
                assert_eq!(
                    apply(sums(&downstream, &request), encoded.request.deltas),
                    sums(&upstream, payload)
                );
                assert_eq!(
                    apply(sums(&upstream.reversed(), payload), encoded.reply.deltas),
                    sums(&downstream.reversed(), &request)
                );
            }
        }
    }

    #[test]
    fn flow_is_offloadable_in_one_family_with_short_headers_of_even_length() {
        let v4 = pair("10.81.0.2:40000", "10.81.0.1:8443");
        let v4_client = pair("203.0.113.9:4660", "127.0.0.1:53");
        assert!(flow(v4, v4_client, &[]).is_offloadable());
        let v6 = pair("[fd81::2]:40000", "[fd81::1]:8443");
        assert!(!flow(v6, v4_client, &[]).is_offloadable());
        assert!(!flow(v4, v4_client, &[0; Spp::LEN - 1]).is_offloadable());
        assert!(!flow(v4, v4_client, &[0; Spp::LEN + 2]).is_offloadable());
        let link_local = pair("[fe80::2]:40000", "[fd81::1]:8443");
        let v6_client = pair("[2001:db8::1]:1", "[::1]:53");
        assert!(flow(v6, v6_client, &[]).is_offloadable());
        assert!(!flow(link_local, v6_client, &[]).is_offloadable());
        let long = [&HEADER[..], &[0; 230]].concat();
        for header in [&[][..], &HEADER[..13], &[0; 28], &long] {
            let flow = Flow {
                header,
                ..flow(v4, v4_client, &[])
            };
            assert!(!flow.is_offloadable(), "{header:?}");
        }
    }
}
