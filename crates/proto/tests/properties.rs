//! Properties of every header, tested with random input.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use peername_proto::{
    Carrier, Command, Endpoints, Header, Parsed, Spp, Tlv, Transport, UnixName, V2Writer, Version,
    canonical, guess_protocol, kind, parse, write_v1,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn v1_header_reads_back(source: SocketAddr, destination: SocketAddr, payload in vec(any::<u8>(), 0..40)) {
        let mut bytes = Vec::new();
        write_v1(&mut bytes, source, destination);
        let len = bytes.len();
        prop_assert!(len <= 104);
        bytes.extend(payload);
        let header = complete(&bytes, Carrier::Stream);
        prop_assert_eq!((header.version, header.command, header.len), (Version::V1, Command::Proxy, len));
        let (source, destination) = one_family(source, destination);
        prop_assert_eq!((header.source(), header.destination()), (Some(source), Some(destination)));
    }

    #[test]
    fn v2_header_reads_back(spec in header_specs(), carrier in carriers(), payload in vec(any::<u8>(), 0..40)) {
        let mut bytes = spec.write();
        let len = bytes.len();
        bytes.extend(payload);
        let header = complete(&bytes, carrier);
        prop_assert_eq!((header.version, header.command, header.len), (Version::V2, Command::Proxy, len));
        prop_assert_eq!(header.endpoints, spec.endpoints());
        spec.compare_tlvs(&header);
    }

    #[test]
    fn v2_header_without_ip_addresses_reads_back(
        names: Option<([u8; 108], [u8; 108])>,
        transport in transports(),
        is_local: bool,
        payload in vec(any::<u8>(), 0..40),
    ) {
        let names = names.as_ref().map(|(source, destination)| (UnixName(source), UnixName(destination)));
        let mut bytes = Vec::new();
        let writer = match names {
            Some((source, destination)) => V2Writer::unix(&mut bytes, transport, source, destination),
            None if is_local => V2Writer::local(&mut bytes),
            None => V2Writer::unspec(&mut bytes),
        };
        let len = writer.tlv(kind::NOOP, b"").finish().unwrap();
        bytes.extend(payload);
        let header = complete(&bytes, Carrier::Stream);
        let endpoints = match names {
            Some((source, destination)) => Endpoints::Unix { transport, source, destination },
            None => Endpoints::Real,
        };
        prop_assert_eq!((header.len, header.endpoints, header.source()), (len, endpoints, None));
        // LOCAL and UNSPEC have no TLVs: what follows their header is ignored.
        prop_assert_eq!(header.tlvs.get(kind::NOOP).is_some(), names.is_some());
        prop_assert_eq!(header.command == Command::Local, names.is_none() && is_local);
    }

    #[test]
    fn header_that_is_too_long_is_not_written(spec in header_specs(), before in vec(any::<u8>(), 0..9), len in 65_500..65_536_usize) {
        let mut out = before.clone();
        let written = V2Writer::proxy(&mut out, spec.transport, spec.source, spec.destination)
            .tlv(kind::NOOP, &vec![0; len])
            .finish();
        match written {
            Ok(len) => {
                prop_assert_eq!(out.len(), before.len() + len);
                prop_assert_eq!(complete(&out[before.len()..], Carrier::Stream).len, len);
            }
            Err(_) => prop_assert_eq!(out, before),
        }
    }

    #[test]
    fn forwarded_tlvs_are_preserved(spec in header_specs()) {
        let first = spec.write();
        let mut second = Vec::new();
        let (source, destination) = (spec.source, spec.destination);
        V2Writer::proxy(&mut second, spec.transport, source, destination)
            .tlvs(complete(&first, Carrier::Stream).tlvs)
            .finish()
            .unwrap();
        let forwarded = |bytes| {
            let header = complete(bytes, Carrier::Stream);
            tlvs_except(&header, &[kind::CRC32C, kind::NOOP])
        };
        prop_assert_eq!(forwarded(&first), forwarded(&second));
    }

    #[test]
    fn one_flipped_bit_is_detected_by_the_checksum(mut spec in header_specs(), bit: Index) {
        spec.checksum = Some(spec.checksum.unwrap_or(0));
        let original = spec.write();
        let mut flipped = original.clone();
        let bit = bit.index(flipped.len() * 8);
        flipped[bit / 8] ^= 1 << (bit % 8);
        // A flip can remove the checksum itself (its type, a length before it, the family), or make the header LOCAL or
        // UNSPEC. In all other cases it is an error.
        match parse(&flipped, Carrier::Stream) {
            Ok(Parsed::Complete(header)) => {
                prop_assert_eq!(header.tlvs.get(kind::CRC32C), None);
                prop_assert_ne!(header, complete(&original, Carrier::Stream));
            }
            Ok(Parsed::NeedMore(need)) => prop_assert!(need > flipped.len()),
            Err(_) => {}
        }
    }

    #[test]
    fn written_spp_header_reads_back(client: SocketAddr, proxy: SocketAddr, payload in vec(any::<u8>(), 0..40)) {
        let mut bytes = Spp { client, proxy }.to_bytes().to_vec();
        bytes.extend(payload);
        let header = Spp::parse(&bytes).unwrap();
        prop_assert_eq!(header.client, canonical(client));
        prop_assert_eq!(header.proxy, canonical(proxy));
        prop_assert_eq!(&header.to_bytes()[..], &bytes[..Spp::LEN]);
    }

    #[test]
    fn every_prefix_agrees_with_the_whole(bytes in any_input()) {
        let whole = parse(&bytes, Carrier::Stream);
        for end in 0..bytes.len() {
            match parse(&bytes[..end], Carrier::Stream) {
                Ok(Parsed::NeedMore(need)) => {
                    prop_assert!(need > end);
                    if let Ok(Parsed::Complete(header)) = whole {
                        prop_assert!(need <= header.len);
                    }
                }
                early => prop_assert_eq!(early, whole, "at {}", end),
            }
        }
    }

    #[test]
    fn datagram_is_never_incomplete(bytes in any_input()) {
        let stream = parse(&bytes, Carrier::Stream);
        match parse(&bytes, Carrier::Datagram) {
            Ok(Parsed::NeedMore(_)) => prop_assert!(false, "a datagram doesn't grow"),
            Ok(Parsed::Complete(header)) => {
                prop_assert_eq!(header.version, Version::V2);
                prop_assert_eq!(stream, Ok(Parsed::Complete(header)));
            }
            Err(_) => {}
        }
        let _ = (Spp::parse(&bytes), guess_protocol(&bytes));
    }

    #[test]
    fn parsed_spp_header_is_written_back(fields in any::<[u8; 36]>(), cut in 0..38_usize) {
        let bytes = [&[0x56, 0xec][..], &fields].concat();
        let header = Spp::parse(&bytes).unwrap();
        prop_assert_eq!(&header.to_bytes()[..], &bytes[..]);
        prop_assert!(Spp::parse(&bytes[..cut]).is_err());
    }

    /// The parser accepts IPv4 after TCP6, too.
    #[test]
    fn v6_text_agrees_with_the_standard_library(text in "[0-9a-fA-F:]{1,16}|[0-9a-f:]{0,12}[0-9.]{5,12}|([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|([0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}") {
        let line = format!("PROXY TCP6 {text} ::1 1 2\r\n");
        prop_assert_eq!(source_ip(&line), text.parse::<IpAddr>().ok());
    }

    #[test]
    fn v4_text_agrees_with_the_standard_library(text in "[0-9]{1,3}(\\.[0-9]{1,3}){2,4}|[0-9.]{1,15}|([12]?[0-9]?[0-9]\\.){3}[0-9]{1,3}") {
        let line = format!("PROXY TCP4 {text} 1.1.1.1 1 2\r\n");
        let expected = text.parse::<Ipv4Addr>().ok().map(IpAddr::V4);
        prop_assert_eq!(source_ip(&line), expected);
    }
}

/// Type and value of each TLV.
type TlvValues = Vec<(u8, Vec<u8>)>;

/// A version 2 header to encode, and to compare with the decoded one.
#[derive(Clone, Debug)]
struct HeaderSpec {
    transport: Transport,
    source: SocketAddr,
    destination: SocketAddr,
    tlvs: TlvValues,
    ssl: Option<(u8, u32, TlvValues)>,
    /// The number of TLVs before the checksum.
    checksum: Option<usize>,
}

impl HeaderSpec {
    fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (source, destination) = (self.source, self.destination);
        let mut writer = V2Writer::proxy(&mut bytes, self.transport, source, destination);
        for (nth, (kind, value)) in self.tlvs.iter().enumerate() {
            if self.checksum == Some(nth) {
                writer = writer.crc32c();
            }
            writer = writer.tlv(*kind, value);
        }
        if let Some((client, verify, details)) = &self.ssl {
            let details: Vec<_> = details
                .iter()
                .map(|(kind, value)| Tlv { kind: *kind, value })
                .collect();
            writer = writer.ssl(*client, *verify, &details);
        }
        if self.checksum.is_some() {
            writer = writer.crc32c();
        }
        let len = writer.finish().unwrap();
        assert_eq!(len, bytes.len());
        bytes
    }

    fn endpoints(&self) -> Endpoints<'static> {
        let (source, destination) = one_family(self.source, self.destination);
        Endpoints::Inet {
            transport: self.transport,
            source,
            destination,
        }
    }

    fn compare_tlvs(&self, header: &Header<'_>) {
        assert_eq!(tlvs_except(header, &[kind::CRC32C, kind::SSL]), self.tlvs);
        assert_eq!(
            header.tlvs.get(kind::CRC32C).is_some(),
            self.checksum.is_some()
        );
        let ssl = header.tlvs.ssl().map(|ssl| {
            let details = ssl
                .tlvs
                .iter()
                .map(|tlv| (tlv.kind, tlv.value.to_vec()))
                .collect();
            (ssl.client, ssl.verify, details)
        });
        assert_eq!(ssl, self.ssl);
    }
}

fn header_specs() -> impl Strategy<Value = HeaderSpec> {
    let kinds = any::<u8>().prop_filter("written from fields of their own", |kind| {
        !matches!(*kind, kind::CRC32C | kind::SSL)
    });
    let tlvs = vec((kinds, vec(any::<u8>(), 0..129)), 0..6);
    let ssl = proptest::option::of((
        any::<u8>(),
        any::<u32>(),
        vec((any::<u8>(), vec(any::<u8>(), 0..40)), 0..4),
    ));
    let checksum = proptest::option::of(0..6_usize);
    (
        transports(),
        any::<SocketAddr>(),
        any::<SocketAddr>(),
        tlvs,
        ssl,
        checksum,
    )
        .prop_map(
            |(transport, source, destination, tlvs, ssl, checksum)| HeaderSpec {
                transport,
                source,
                destination,
                tlvs,
                ssl,
                checksum,
            },
        )
}

/// Valid headers, headers with one byte changed, plausible lines, and random bytes.
fn any_input() -> impl Strategy<Value = Vec<u8>> {
    let binary = header_specs().prop_map(|spec| spec.write());
    let text = any::<(SocketAddr, SocketAddr)>().prop_map(|(source, destination)| {
        let mut line = Vec::new();
        write_v1(&mut line, source, destination);
        line
    });
    let line =
        "PROXY (TCP4|TCP6|UNKNOWN) [ -~]{0,90}(\r\n)?[ -~]{0,20}".prop_map(String::into_bytes);
    let with_signature = vec(any::<u8>(), 0..60).prop_map(|rest| {
        [
            peername_proto::V2_SIGNATURE.as_slice(),
            &[0x21, 0x11, 0, 30],
            &rest,
        ]
        .concat()
    });
    let random = vec(any::<u8>(), 0..150);
    (
        prop_oneof![binary, text, line, with_signature, random],
        any::<Option<(Index, u8)>>(),
    )
        .prop_map(|(mut bytes, change)| {
            if let (Some((at, byte)), false) = (change, bytes.is_empty()) {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes
        })
}

fn transports() -> impl Strategy<Value = Transport> {
    select(&[Transport::Stream, Transport::Datagram][..])
}

fn carriers() -> impl Strategy<Value = Carrier> {
    select(&[Carrier::Stream, Carrier::Datagram][..])
}

#[track_caller]
fn complete(bytes: &[u8], carrier: Carrier) -> Header<'_> {
    match parse(bytes, carrier) {
        Ok(Parsed::Complete(header)) => header,
        other => panic!("{other:?}"),
    }
}

fn source_ip(line: &str) -> Option<IpAddr> {
    match parse(line.as_bytes(), Carrier::Stream) {
        Ok(Parsed::Complete(header)) => header.source().map(|source| source.ip()),
        _ => None,
    }
}

/// The header's TLVs, without those of the `excluded` types.
fn tlvs_except(header: &Header<'_>, excluded: &[u8]) -> TlvValues {
    header
        .tlvs
        .iter()
        .filter(|tlv| !excluded.contains(&tlv.kind))
        .map(|tlv| (tlv.kind, tlv.value.to_vec()))
        .collect()
}

/// The endpoints as a header preserves them: an IPv4 address is mapped if the other one is IPv6; flow label and scope are
/// lost.
fn one_family(source: SocketAddr, destination: SocketAddr) -> (SocketAddr, SocketAddr) {
    let is_mixed = source.is_ipv4() != destination.is_ipv4();
    let to_family = |end: SocketAddr| match end.ip() {
        IpAddr::V4(v4) if is_mixed => SocketAddr::new(v4.to_ipv6_mapped().into(), end.port()),
        ip => SocketAddr::new(ip, end.port()),
    };
    (to_family(source), to_family(destination))
}
