//! What bytes without a header seem to be: for the text of an error, never for a decision.
//!
//! A port carries headers or it doesn't; guessing would let a client choose (section 2). But who set
//! up the sender wants to know what arrived instead.

use core::fmt::{self, Display, Formatter};

use crate::{spp, v1, v2};

/// Names what `bytes` start like, if it is anything well known.
pub fn looks_like(bytes: &[u8]) -> Option<LooksLike> {
    let found = match bytes {
        [0x16, 3, 0..=4, _, _, 1, ..] => LooksLike::TlsClientHello,
        [0xc0..=0xff, 0, 0, 0, 1, ..] => LooksLike::Quic,
        _ if bytes.starts_with(b"SSH-") => LooksLike::Ssh,
        _ if bytes.starts_with(b"PRI * HTTP/2") => LooksLike::Http2,
        _ if METHODS.iter().any(|method| bytes.starts_with(method)) => LooksLike::Http1,
        _ if bytes.starts_with(&spp::MAGIC) => LooksLike::Spp,
        _ if bytes.starts_with(v1::KEYWORD) => LooksLike::ProxyV1,
        _ if bytes.starts_with(&v2::SIGNATURE) => proxy_v2(bytes),
        _ => return None,
    };
    Some(found)
}

/// What the start of a connection or datagram looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LooksLike {
    /// A TLS client's first message.
    TlsClientHello,
    /// A QUIC version 1 packet with a long header.
    Quic,
    /// An SSH identification string.
    Ssh,
    /// An HTTP/1 request.
    Http1,
    /// The HTTP/2 connection preface.
    Http2,
    /// Cloudflare's Simple Proxy Protocol.
    Spp,
    /// The PROXY protocol's text version.
    ProxyV1,
    /// Its binary version, about a stream or nothing in particular.
    ProxyV2,
    /// Its binary version, about a datagram.
    ProxyV2Datagram,
}

impl Display for LooksLike {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TlsClientHello => "a TLS ClientHello",
            Self::Quic => "a QUIC packet",
            Self::Ssh => "SSH",
            Self::Http1 => "an HTTP/1 request",
            Self::Http2 => "an HTTP/2 preface",
            Self::Spp => "a Simple Proxy Protocol header",
            Self::ProxyV1 => "a PROXY protocol header of version 1",
            Self::ProxyV2 => "a PROXY protocol header of version 2",
            Self::ProxyV2Datagram => "a PROXY protocol header of version 2 for a datagram",
        })
    }
}

fn proxy_v2(bytes: &[u8]) -> LooksLike {
    match bytes.get(13).map(|family_transport| family_transport & 0xf) {
        Some(2) => LooksLike::ProxyV2Datagram,
        _ => LooksLike::ProxyV2,
    }
}

const METHODS: [&[u8]; 8] = [
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"CONNECT ",
    b"PATCH ",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_it_knows() {
        let hello = [0x16, 3, 1, 0, 0x31, 1, 0, 0];
        assert_eq!(looks_like(&hello), Some(LooksLike::TlsClientHello));
        assert_eq!(looks_like(b"SSH-2.0-x\r\n"), Some(LooksLike::Ssh));
        assert_eq!(looks_like(b"GET / HTTP/1.1\r\n"), Some(LooksLike::Http1));
        assert_eq!(looks_like(b"PRI * HTTP/2.0\r\n"), Some(LooksLike::Http2));
        assert_eq!(looks_like(&[0x56, 0xec, 0]), Some(LooksLike::Spp));
        assert_eq!(looks_like(b"PROXY TCP4 "), Some(LooksLike::ProxyV1));
        assert_eq!(looks_like(&[0xc3, 0, 0, 0, 1, 8]), Some(LooksLike::Quic));
        let mut v2 = v2::SIGNATURE.to_vec();
        v2.extend([0x21, 0x12]);
        assert_eq!(looks_like(&v2), Some(LooksLike::ProxyV2Datagram));
        v2[13] = 0x11;
        assert_eq!(looks_like(&v2), Some(LooksLike::ProxyV2));
        assert_eq!(looks_like(b""), None);
        assert_eq!(looks_like(b"EHLO x\r\n"), None);
    }
}
