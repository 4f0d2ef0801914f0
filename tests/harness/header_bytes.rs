//! PROXY headers as bytes, made by hand, so that the codec under test does not check itself.

use std::net::SocketAddr;

use super::addr::{FRONT_V4, fresh_client_v4};

/// A v1 header (`PROXY TCP4 …`), for endpoints of one family.
pub(crate) fn v1(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
    let (from, to) = (source.ip(), destination.ip());
    let ports = format!("{} {}", source.port(), destination.port());
    format!("PROXY {family} {from} {to} {ports}\r\n").into_bytes()
}

/// A v2 PROXY header over STREAM with TLVs already encoded.
pub(crate) fn v2(source: SocketAddr, destination: SocketAddr, tlvs: &[u8]) -> Vec<u8> {
    let family = if source.is_ipv4() {
        STREAM_V4
    } else {
        STREAM_V6
    };
    raw(
        PROXY,
        family,
        &[&addresses(source, destination), tlvs].concat(),
    )
}

/// A v2 PROXY header over DGRAM.
pub(crate) fn v2_udp(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let family = if source.is_ipv4() { DGRAM_V4 } else { DGRAM_V6 };
    raw(PROXY, family, &addresses(source, destination))
}

/// A Simple Proxy Protocol header.
pub(crate) fn spp(client: SocketAddr, proxy: SocketAddr) -> Vec<u8> {
    let octets = |addr: SocketAddr| match addr {
        SocketAddr::V4(addr) => addr.ip().to_ipv6_mapped().octets(),
        SocketAddr::V6(addr) => addr.ip().octets(),
    };
    [
        &[0x56, 0xec],
        &octets(client)[..],
        &octets(proxy),
        &client.port().to_be_bytes(),
        &proxy.port().to_be_bytes(),
    ]
    .concat()
}

/// A v2 header of any command, family and body, well-formed or not.
pub(crate) fn raw(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len())
        .expect("a body below 64 KiB")
        .to_be_bytes();
    [SIGNATURE, &[command, family], &len, body].concat()
}

/// The address block of a v2 header.
pub(crate) fn addresses(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let octets = |addr: SocketAddr| match addr {
        SocketAddr::V4(addr) => addr.ip().octets().to_vec(),
        SocketAddr::V6(addr) => addr.ip().octets().to_vec(),
    };
    let ports = [
        source.port().to_be_bytes(),
        destination.port().to_be_bytes(),
    ];
    [octets(source), octets(destination), ports.concat()].concat()
}

/// One TLV.
pub(crate) fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(value.len())
        .expect("a value below 64 KiB")
        .to_be_bytes();
    [&[kind], &len[..], value].concat()
}

/// The health check of an AWS Network Load Balancer: LOCAL, family TCP4, no addresses but a CRC32C TLV and a NOOP of 74
/// zeros. Read as addresses it claims 3.0.4.188:74.
pub(crate) fn nlb_health_check() -> Vec<u8> {
    let tlvs = [0x03, 0x00, 0x04, 0xbc, 0xe5, 0x95, 0x1f, 0x04, 0x00, 0x4a];
    let body: Vec<u8> = tlvs.into_iter().chain(std::iter::repeat_n(0, 74)).collect();
    raw(LOCAL, STREAM_V4, &body)
}

/// Headers of the balancer's own connections, which carry no client: name and bytes of each.
pub(crate) fn without_client() -> [(&'static str, Vec<u8>); 6] {
    let block = addresses(fresh_client_v4(), FRONT_V4);
    [
        ("LOCAL, nothing else", raw(LOCAL, UNSPEC, &[])),
        ("LOCAL with an address block", raw(LOCAL, STREAM_V4, &block)),
        (
            "LOCAL with a family and no block",
            raw(LOCAL, STREAM_V4, &[]),
        ),
        ("an AWS health check", nlb_health_check()),
        ("UNKNOWN, short", b"PROXY UNKNOWN\r\n".to_vec()),
        (
            "UNKNOWN, long",
            b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(),
        ),
    ]
}

/// Headers of relayed connections that name no address of the client: name and bytes of each.
pub(crate) fn without_address() -> [(&'static str, Vec<u8>); 4] {
    let block = addresses(fresh_client_v4(), FRONT_V4);
    [
        ("AF_UNSPEC", raw(PROXY, UNSPEC, &[])),
        ("AF_UNSPEC with a block", raw(PROXY, UNSPEC, &block)),
        ("IPv4 without a transport", raw(PROXY, 0x10, &block)),
        // Two paths of 108 bytes.
        ("AF_UNIX", raw(PROXY, STREAM_UNIX, &[b'x'; 216])),
    ]
}

pub(crate) const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
pub(crate) const LOCAL: u8 = 0x20;
pub(crate) const PROXY: u8 = 0x21;
pub(crate) const UNSPEC: u8 = 0x00;
pub(crate) const STREAM_V4: u8 = 0x11;
pub(crate) const DGRAM_V4: u8 = 0x12;
pub(crate) const STREAM_V6: u8 = 0x21;
pub(crate) const DGRAM_V6: u8 = 0x22;
pub(crate) const STREAM_UNIX: u8 = 0x31;
pub(crate) const DGRAM_UNIX: u8 = 0x32;
pub(crate) const CRC32C: u8 = 0x03;
pub(crate) const NOOP: u8 = 0x04;
