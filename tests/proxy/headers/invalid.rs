//! Invalid headers, by accident (another protocol, another dialect) or by intent: each of them ended some
//! proxy, or was believed as a client's address.

use crate::harness::addr::{FRONT_V4, fresh_client_v4};
use crate::harness::header_bytes::{
    CRC32C, DGRAM_V4, NOOP, PROXY, STREAM_V4, STREAM_V6, addresses, raw, tlv, v2,
};

/// Name and bytes of each.
pub(super) fn headers() -> Vec<(&'static str, Vec<u8>)> {
    let block = addresses(fresh_client_v4(), FRONT_V4);
    let with_tlvs = |tlvs: &[u8]| v2(fresh_client_v4(), FRONT_V4, tlvs);
    let line = |text: &str| text.as_bytes().to_vec();
    vec![
        (
            "TLS",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        ),
        ("HTTP", line("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")),
        (
            "HTTP, a word that begins alike",
            line("PROPFIND / HTTP/1.1\r\n\r\n"),
        ),
        ("SSH", line("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")),
        (
            "Cloudflare's UDP header",
            [&b"\x56\xec"[..], &[0; 36]].concat(),
        ),
        ("zeros", vec![0; 64]),
        (
            "a broken signature",
            b"\r\n\r\n\0\r\nQUIT\r\x21\x11\0\x0c".to_vec(),
        ),
        ("v2, version 3", raw(0x31, STREAM_V4, &block)),
        ("v2, version 1", raw(0x11, STREAM_V4, &block)),
        ("v2, command 2", raw(0x22, STREAM_V4, &block)),
        ("v2, family 4", raw(PROXY, 0x41, &block)),
        ("v2, transport 3", raw(PROXY, 0x13, &block)),
        ("v2, UDP without addresses", raw(PROXY, DGRAM_V4, &[])),
        ("v2, IPv4 without addresses", raw(PROXY, STREAM_V4, &[])),
        ("v2, IPv4 in 4 bytes", raw(PROXY, STREAM_V4, &block[..4])),
        ("v2, IPv4 in 11 bytes", raw(PROXY, STREAM_V4, &block[..11])),
        ("v2, IPv6 in 12 bytes", raw(PROXY, STREAM_V6, &block)),
        ("v2, a TLV that overruns", with_tlvs(&[NOOP, 0, 9, 1, 2])),
        ("v2, a TLV without its length", with_tlvs(&[NOOP, 0])),
        (
            "v2, a wrong checksum",
            with_tlvs(&tlv(CRC32C, &[1, 2, 3, 4])),
        ),
        (
            "v2, a checksum of 3 bytes",
            with_tlvs(&tlv(CRC32C, &[1, 2, 3])),
        ),
        (
            "v1, port -5",
            line("PROXY TCP4 198.51.100.7 203.0.113.1 -5 80\r\n"),
        ),
        (
            "v1, port 70000",
            line("PROXY TCP4 198.51.100.7 203.0.113.1 70000 80\r\n"),
        ),
        (
            "v1, no ports",
            line("PROXY TCP4 198.51.100.7 203.0.113.1\r\n"),
        ),
        (
            "v1, a word too many",
            line("PROXY TCP4 198.51.100.7 203.0.113.1 1 2 3\r\n"),
        ),
        (
            "v1, two spaces",
            line("PROXY TCP4  198.51.100.7 203.0.113.1 1 2\r\n"),
        ),
        (
            "v1, a name",
            line("PROXY TCP4 localhost 203.0.113.1 1 2\r\n"),
        ),
        (
            "v1, leading zeros",
            line("PROXY TCP4 198.051.100.007 203.0.113.1 1 2\r\n"),
        ),
        (
            "v1, an address of both families",
            line("PROXY TCP6 198.51.100.7::1 2001:db8::1 1 2\r\n"),
        ),
        (
            "v1, two spaces before CRLF",
            line("PROXY TCP4 198.51.100.7 203.0.113.1 1 2  \r\n"),
        ),
        (
            "v1, UDP4",
            line("PROXY UDP4 198.51.100.7 203.0.113.1 1 2\r\n"),
        ),
        (
            "v1, small letters",
            line("proxy TCP4 198.51.100.7 203.0.113.1 1 2\r\n"),
        ),
        (
            "v1, LF alone",
            line("PROXY TCP4 198.51.100.7 203.0.113.1 1 2\n"),
        ),
        (
            "v1, a line without end",
            [b"PROXY UNKNOWN ", &[b'x'; 200][..]].concat(),
        ),
    ]
}
