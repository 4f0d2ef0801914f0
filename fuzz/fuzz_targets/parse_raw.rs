//! Any bytes: no panic, and an accepted header re-encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use peername_proto::{
    Carrier, Command, Endpoints, Header, Invalid, Parsed, Ssl, V2Writer, Version, canonical,
    guess_protocol, kind, parse, write_v1, write_v1_unknown,
};

fuzz_target!(|bytes: &[u8]| {
    let _ = guess_protocol(bytes);
    match parse(bytes, Carrier::Stream) {
        Ok(Parsed::Complete(header)) => {
            check_tlvs(&header);
            reencode(&header, &bytes[..header.len]);
        }
        Ok(Parsed::NeedMore(need)) => assert!(need > bytes.len()),
        Err(invalid) => check_error(invalid),
    }
    match parse(bytes, Carrier::Datagram) {
        Ok(Parsed::Complete(header)) => assert_eq!(header.version, Version::V2),
        Ok(Parsed::NeedMore(_)) => panic!("a datagram doesn't grow"),
        Err(invalid) => check_error(invalid),
    }
});

fn check_tlvs(header: &Header<'_>) {
    assert!(header.tlvs.iter().all(|tlv| !tlv.name().is_empty()));
    let bytes: usize = header
        .tlvs
        .iter()
        .map(|tlv| TLV_HEAD + tlv.value.len())
        .sum();
    assert_eq!(bytes, header.tlvs.as_bytes().len());
    for ssl in header.tlvs.iter().filter(|tlv| tlv.kind == kind::SSL) {
        let ssl = Ssl::read(ssl.value).expect("a checked structure");
        let details: usize = ssl.tlvs.iter().map(|tlv| TLV_HEAD + tlv.value.len()).sum();
        assert_eq!(details, ssl.tlvs.as_bytes().len());
    }
}

fn reencode(header: &Header<'_>, bytes: &[u8]) {
    let mut out = Vec::new();
    let writer = match (header.version, header.endpoints) {
        (Version::V1, _) => return reencode_v1(header),
        (Version::V2, Endpoints::Real) => {
            assert!(header.tlvs.is_empty() && header.source().is_none());
            return;
        }
        (
            Version::V2,
            Endpoints::Inet {
                transport,
                source,
                destination,
            },
        ) => V2Writer::proxy(&mut out, transport, source, destination),
        (
            Version::V2,
            Endpoints::Unix {
                transport,
                source,
                destination,
            },
        ) => {
            assert!(source.to_string().is_ascii() && destination.name().len() <= 108);
            V2Writer::unix(&mut out, transport, source, destination)
        }
    };
    let writer = header
        .tlvs
        .iter()
        .fold(writer, |writer, tlv| match tlv.kind {
            kind::CRC32C => writer.crc32c(),
            kind => writer.tlv(kind, tlv.value),
        });
    assert_eq!(writer.finish(), Ok(bytes.len()));
    assert_eq!(out, bytes);
}

fn reencode_v1(header: &Header<'_>) {
    let mut out = Vec::new();
    match (header.source(), header.destination()) {
        (Some(source), Some(destination)) => write_v1(&mut out, source, destination),
        _ => {
            assert_eq!(header.command, Command::Unknown);
            write_v1_unknown(&mut out);
        }
    }
    let Ok(Parsed::Complete(again)) = parse(&out, Carrier::Stream) else {
        panic!("{out:?}")
    };
    assert_eq!(again.command, header.command);
    // If the ends are of different families, the IPv4 address is written as IPv4-mapped IPv6.
    let ends =
        |header: &Header<'_>| [header.source(), header.destination()].map(|end| end.map(canonical));
    assert_eq!(ends(&again), ends(header));
}

fn check_error(invalid: Invalid) {
    assert!(invalid.to_string().is_ascii());
    assert!(
        invalid
            .reason()
            .bytes()
            .all(|b| b == b'_' || b.is_ascii_lowercase() || b.is_ascii_digit())
    );
}

/// Bytes of type and length, in front of each value.
const TLV_HEAD: usize = 3;
