use super::*;
use crate::{Carrier, Command, Endpoints, Header, Invalid, Parsed, Transport, kind, parse};

fn addresses() -> (SocketAddr, SocketAddr) {
    (
        "192.0.2.1:1000".parse().unwrap(),
        "198.51.100.1:443".parse().unwrap(),
    )
}

fn proxy(out: &mut Vec<u8>) -> V2Writer<'_> {
    let (source, destination) = addresses();
    V2Writer::proxy(out, Transport::Stream, source, destination)
}

fn read(bytes: &[u8]) -> Header<'_> {
    match parse(bytes, Carrier::Stream) {
        Ok(Parsed::Complete(header)) => header,
        other => panic!("{other:?}"),
    }
}

#[test]
fn version_1_line_has_one_family_and_no_dotted_tail() {
    let (v4, v6) = (addresses().0, "[2001:db8::1]:2".parse().unwrap());
    let line = |source, destination| {
        let mut out = Vec::new();
        write_v1(&mut out, source, destination);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(line(v4, v4), "PROXY TCP4 192.0.2.1 192.0.2.1 1000 1000\r\n");
    assert_eq!(line(v6, v6), "PROXY TCP6 2001:db8::1 2001:db8::1 2 2\r\n");
    // The grammar has no dotted tail.
    assert_eq!(
        line(v4, v6),
        "PROXY TCP6 ::ffff:c000:201 2001:db8::1 1000 2\r\n"
    );
}

#[test]
fn headers_without_addresses_parse_back() {
    let mut out = Vec::new();
    write_v1_unknown(&mut out);
    assert_eq!(read(&out).command, Command::Unknown);
    out.clear();
    assert_eq!(V2Writer::local(&mut out).crc32c().finish(), Ok(23));
    assert_eq!((read(&out).command, read(&out).len), (Command::Local, 23));
    out.clear();
    assert_eq!(V2Writer::unspec(&mut out).finish(), Ok(16));
    assert_eq!(
        (read(&out).command, read(&out).endpoints),
        (Command::Proxy, Endpoints::Real)
    );
}

#[test]
fn header_that_exceeds_its_length_field_is_not_written() {
    let mut out = b"kept".to_vec();
    let longest = 0xffff - 12 - 3;
    assert_eq!(
        proxy(&mut out).tlv(0xe1, &vec![0; longest]).finish(),
        Ok(crate::V2_MAX_LEN)
    );
    out.truncate(4);
    let too_long = proxy(&mut out).tlv(0xe1, &vec![0; longest + 1]).finish();
    assert_eq!(too_long, Err(WriteError::TooLong(0x10000)));
    let too_long = proxy(&mut out).tlv(0xe1, &vec![0; 0x10000]).finish();
    assert!(matches!(too_long, Err(WriteError::TooLong(_))));
    let detail = crate::Tlv {
        kind: kind::SSL_CN,
        value: &[0; 0x10000],
    };
    assert!(matches!(
        proxy(&mut out).ssl(1, 0, &[detail]).finish(),
        Err(WriteError::TooLong(_))
    ));
    assert_eq!(out, b"kept");
}

#[test]
fn header_that_receivers_refuse_is_not_written() {
    let mut out = b"kept".to_vec();
    assert_eq!(
        proxy(&mut out).tlv(kind::CRC32C, &[0; 4]).finish(),
        Err(WriteError::Checksum)
    );
    let long = proxy(&mut out).tlv(kind::UNIQUE_ID, &[0; 129]).finish();
    assert_eq!(
        long,
        Err(Invalid::UniqueIdLength {
            offset: 28,
            length: 129
        }
        .into())
    );
    let broken = proxy(&mut out)
        .tlv(kind::SSL, &[0; 4])
        .tlv(kind::CRC32C, &[])
        .finish();
    assert_eq!(
        broken,
        Err(Invalid::Ssl { offset: 28 }.into()),
        "the first error"
    );
    drop(proxy(&mut out).tlv(kind::ALPN, b"h2"));
    assert_eq!(out, b"kept");
}
