use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;

#[test]
fn first_bytes_are_incomplete_until_they_tell_the_protocol() {
    for (bytes, expected) in [
        (&b""[..], FirstBytes::Incomplete),
        (b"\x16", FirstBytes::Incomplete),
        (b"\x16\x03", FirstBytes::Tls),
        (b"\x16\x02", FirstBytes::Unknown),
        (b"\x15\x03\x01", FirstBytes::Unknown),
        (b"G", FirstBytes::Incomplete),
        (b"POST", FirstBytes::Incomplete),
        (b"POST /x HTTP/1.", FirstBytes::Incomplete),
        (b"POST /x HTTP/1.1\r\n", FirstBytes::Http),
        (b"PROPFIND /x HTTP/1.0\n", FirstBytes::Http),
        (b"GET /x\r\n", FirstBytes::Unknown),
        (b"PRI * HTTP/2.0\r\n", FirstBytes::Unknown),
        (b"SSH-2.0-OpenSSH_9.2\r\n", FirstBytes::Unknown),
        (b"EHLO client.test\r\n", FirstBytes::Unknown),
        (b"\x00\x01", FirstBytes::Unknown),
    ] {
        assert_eq!(
            classify_first_bytes(bytes),
            expected,
            "{}",
            bytes.escape_ascii()
        );
    }
}

#[test]
fn a_client_hello_is_parsed_however_it_is_cut_into_reads() {
    for (name, alpn, sni, http2, http1) in [
        (
            "A.test.",
            &["h2", "http/1.1"][..],
            Some("a.test"),
            true,
            true,
        ),
        ("a.test", &["h2"], Some("a.test"), true, false),
        ("a.test", &["http/1.1"], Some("a.test"), false, true),
        ("a.test", &[], Some("a.test"), false, true),
        ("a.test", &["h3", "spdy/3"], Some("a.test"), false, false),
        // Addresses are not indicated (RFC 6066, section 3).
        ("192.0.2.1", &[], None, false, true),
    ] {
        let bytes = client_hello(name, alpn);
        for size in [1, 5, 6, 100, bytes.len()] {
            let hello = feed_in_parts(&bytes, size)
                .expect("a ClientHello")
                .expect("a whole one");
            let text = hello.sni.map(|sni| sni.to_string());
            assert_eq!(
                (text.as_deref(), hello.http2, hello.http1),
                (sni, http2, http1),
                "{name} {alpn:?}"
            );
            assert!(hello.support.ecdsa);
        }
        let half = feed_in_parts(&bytes[..bytes.len() - 1], 7);
        assert!(half.expect("no error yet").is_none(), "{name}");
    }
}

/// An SNI that is no host counts as none: no certificate is minted for it.
#[test]
fn an_sni_that_is_no_host_is_ignored() {
    let good = client_hello("aa-b.test", &[]);
    for other in [
        "aa_-.test",
        "1.2.3.456",
        "aa..bb.te",
        "aa\0b.test",
        "aa\u{c3}b.test",
    ] {
        let mut bytes = good.clone();
        let at = find(&bytes, b"aa-b.test");
        let name: Vec<u8> = other.chars().map(|c| c as u8).collect();
        bytes[at..at + 9].copy_from_slice(&name);
        match feed_in_parts(&bytes, 100) {
            Ok(Some(hello)) => assert_eq!(hello.sni, None, "{other:?}"),
            Ok(None) => panic!("{other:?}: half"),
            Err(why) => assert!(
                matches!(why, OpeningError::NotAClientHello(_)),
                "{other:?}: {why}"
            ),
        }
    }
}

#[test]
fn bytes_that_are_no_client_hello_are_refused() {
    let alert = b"\x15\x03\x03\x00\x02\x02\x28";
    let server_hello = b"\x16\x03\x03\x00\x04\x02\x00\x00\x00";
    let empty = b"\x16\x03\x01\x00\x04\x01\x00\x00\x00";
    for bytes in [&alert[..], server_hello, empty] {
        let why = feed_in_parts(bytes, 3).err().expect("an error");
        assert!(matches!(why, OpeningError::NotAClientHello(_)), "{why}");
    }
}

/// A handshake message may claim 16 MiB, which is neither waited for nor buffered.
#[test]
fn a_client_hello_that_claims_too_long_a_message_is_refused() {
    let mut bytes = b"\x16\x03\x01\x40\x00\x01\xff\xff\xff\x03\x03".to_vec();
    bytes.resize(5 + 0x4000, 0);
    for _ in 0..7 {
        bytes.extend(b"\x16\x03\x01\x40\x00");
        bytes.resize(bytes.len() + 0x4000, 0);
    }
    let why = feed_in_parts(&bytes, 4096).err().expect("an error");
    assert!(matches!(why, OpeningError::NotAClientHello(_)), "{why}");
}

#[test]
fn a_client_hello_of_more_than_one_record_is_parsed() {
    let protocols: Vec<_> = (100..250).map(|number| "x".repeat(number)).collect();
    let protocols: Vec<_> = protocols.iter().map(String::as_str).collect();
    let bytes = client_hello("a.test", &protocols);
    assert!(bytes.len() > 0x4000 + 0x800, "{}", bytes.len());
    for size in [100, bytes.len()] {
        let hello = feed_in_parts(&bytes, size).expect("a ClientHello");
        assert!(hello.is_some(), "{size}");
    }
}

/// A ClientHello as rustls writes it.
fn client_hello(name: &str, alpn: &[&str]) -> Vec<u8> {
    let mut config = ClientConfig::builder()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = alpn
        .iter()
        .map(|protocol| protocol.as_bytes().to_vec())
        .collect();
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("memory");
    bytes
}

/// Feeds `size` bytes at a time; `None` if the ClientHello is not complete.
fn feed_in_parts(
    bytes: &[u8],
    size: usize,
) -> Result<Option<Box<ParsedClientHello>>, OpeningError> {
    let mut reader = ClientHelloReader::default();
    let ends = (1..bytes.len().div_ceil(size)).map(|part| part * size);
    for end in ends.chain([bytes.len()]) {
        if let Some(hello) = reader.feed(&bytes[..end])? {
            return Ok(Some(hello));
        }
    }
    Ok(None)
}

fn find(bytes: &[u8], name: &[u8]) -> usize {
    bytes
        .windows(name.len())
        .position(|window| window == name)
        .expect("the name is there")
}
