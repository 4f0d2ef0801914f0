//! Parsing a header and iterating over its TLVs must not allocate: it happens for each datagram.

use std::hint::black_box;

use peername_proto::{
    Carrier, Parsed, Spp, Tlv, Transport, V2Writer, guess_protocol, kind, parse, write_v1,
};

#[test]
fn parsing_allocates_nothing() {
    let headers = headers();
    assert!(
        count_allocations(|| drop(black_box(vec![0_u8; 8]))) > 0,
        "allocations are counted"
    );
    for header in &headers {
        assert_eq!(
            count_allocations(|| parse_and_iterate(header)),
            0,
            "{header:02x?}"
        );
        assert_eq!(
            count_allocations(|| parse_prefixes(header)),
            0,
            "{header:02x?}"
        );
    }
    let (client, proxy) = (V4.parse().unwrap(), V6.parse().unwrap());
    let spp = Spp { client, proxy }.to_bytes();
    let parse = || _ = black_box(Spp::parse(black_box(&spp)).unwrap());
    assert_eq!(count_allocations(parse), 0);
}

fn parse_and_iterate(bytes: &[u8]) {
    let Ok(Parsed::Complete(header)) = parse(black_box(bytes), Carrier::Stream) else {
        panic!("not a header");
    };
    black_box((header.source(), header.destination(), header.transport()));
    for tlv in header.tlvs {
        black_box((tlv.name(), tlv.value));
    }
    for tlv in header.tlvs.ssl().into_iter().flat_map(|ssl| ssl.tlvs) {
        black_box(tlv.value);
    }
}

fn parse_prefixes(bytes: &[u8]) {
    for end in 0..=bytes.len() {
        let prefix = &bytes[..end];
        black_box(parse(prefix, Carrier::Stream)).ok();
        black_box(parse(prefix, Carrier::Datagram))
            .map_err(|invalid| invalid.reason())
            .ok();
        black_box(Spp::parse(prefix)).ok();
        black_box(guess_protocol(prefix));
    }
}

fn headers() -> Vec<Vec<u8>> {
    let (v4, v6) = (V4.parse().unwrap(), V6.parse().unwrap());
    let [mut text4, mut text6, mut binary, mut local] = [const { Vec::new() }; 4];
    write_v1(&mut text4, v4, v4);
    write_v1(&mut text6, v6, v4);
    V2Writer::proxy(&mut binary, Transport::Datagram, v4, v6)
        .tlv(kind::AUTHORITY, b"example.org")
        .tlv(kind::UNIQUE_ID, &[7; 128])
        .tlv(kind::AWS, b"\x01vpce-08d2bf15fac5001c9")
        .ssl(
            1,
            0,
            &[Tlv {
                kind: kind::SSL_VERSION,
                value: b"TLSv1.3",
            }],
        )
        .crc32c()
        .finish()
        .unwrap();
    V2Writer::local(&mut local).finish().unwrap();
    vec![text4, text6, binary, local]
}

const V4: &str = "192.0.2.1:1";
const V6: &str = "[2001:db8::1]:2";

/// Counts the allocations of `work` on this thread.
fn count_allocations(work: impl FnOnce()) -> u64 {
    allocation_counter::measure(work).count_total
}
