use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;

#[test]
fn a_beginning_is_waited_for_until_it_tells() {
    for (bytes, expected) in [
        (&b""[..], Look::More),
        (b"\x16", Look::More),
        (b"\x16\x03", Look::Tls),
        (b"\x16\x02", Look::Unknown),
        (b"\x15\x03\x01", Look::Unknown),
        (b"G", Look::More),
        (b"POST", Look::More),
        (b"POST /x HTTP/1.", Look::More),
        (b"POST /x HTTP/1.1\r\n", Look::Http),
        (b"PROPFIND /x HTTP/1.0\n", Look::Http),
        (b"GET /x\r\n", Look::Unknown),
        (b"PRI * HTTP/2.0\r\n", Look::Unknown),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Look::Unknown),
        (b"EHLO client.test\r\n", Look::Unknown),
        (b"\x00\x01", Look::Unknown),
    ] {
        assert_eq!(first_look(bytes), expected, "{}", bytes.escape_ascii());
    }
}

#[test]
fn what_a_client_asks_for_is_read_however_it_comes() {
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
            let hello = read_in(&bytes, size)
                .expect("a ClientHello")
                .expect("a whole one");
            let text = hello.sni.map(|sni| sni.to_string());
            assert_eq!(
                (text.as_deref(), hello.http2, hello.http1),
                (sni, http2, http1),
                "{name} {alpn:?}"
            );
            assert!(hello.offer.ecdsa);
        }
        let half = read_in(&bytes[..bytes.len() - 1], 7);
        assert!(half.expect("no error yet").is_none(), "{name}");
    }
}

/// A name that is none of ours is as good as none: nothing is minted for it.
#[test]
fn a_name_that_is_no_host_is_none() {
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
        match read_in(&bytes, 100) {
            Ok(Some(hello)) => assert_eq!(hello.sni, None, "{other:?}"),
            Ok(None) => panic!("{other:?}: half"),
            Err(why) => assert!(matches!(why, Unopened::NotAHello(_)), "{other:?}: {why}"),
        }
    }
}

#[test]
fn what_is_no_client_hello_is_told_apart() {
    let alert = b"\x15\x03\x03\x00\x02\x02\x28";
    let server_hello = b"\x16\x03\x03\x00\x04\x02\x00\x00\x00";
    let empty = b"\x16\x03\x01\x00\x04\x01\x00\x00\x00";
    for bytes in [&alert[..], server_hello, empty] {
        let why = read_in(bytes, 3).err().expect("an error");
        assert!(matches!(why, Unopened::NotAHello(_)), "{why}");
    }
}

/// A message may claim 16 MiB. What it claims is not waited for, and not much of it is kept.
#[test]
fn a_client_hello_without_end_is_given_up() {
    let mut bytes = b"\x16\x03\x01\x40\x00\x01\xff\xff\xff\x03\x03".to_vec();
    bytes.resize(5 + 0x4000, 0);
    for _ in 0..7 {
        bytes.extend(b"\x16\x03\x01\x40\x00");
        bytes.resize(bytes.len() + 0x4000, 0);
    }
    let why = read_in(&bytes, 4096).err().expect("an error");
    assert!(
        matches!(
            why,
            Unopened::TooLong | Unopened::NotAHello(_) | Unopened::Read(_)
        ),
        "{why}"
    );
}

/// As a client writes it.
fn client_hello(name: &str, alpn: &[&str]) -> Vec<u8> {
    let mut config = ClientConfig::builder()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|one| one.as_bytes().to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("memory");
    bytes
}

/// In so many octets at a time; `None` if it is not whole.
fn read_in(bytes: &[u8], size: usize) -> Result<Option<Box<Hello>>, Unopened> {
    let mut reader = Reader::default();
    let ends = (1..bytes.len().div_ceil(size)).map(|part| part * size);
    for end in ends.chain([bytes.len()]) {
        if let Some(hello) = reader.look(&bytes[..end])? {
            return Ok(Some(hello));
        }
    }
    Ok(None)
}

fn find(bytes: &[u8], what: &[u8]) -> usize {
    let mut windows = bytes.windows(what.len());
    windows
        .position(|window| window == what)
        .expect("it is there")
}
