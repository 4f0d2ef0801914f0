//! Guesses the protocol of bytes without a header: for the text of an error, never for a decision.
//!
//! A port carries headers or it doesn't; detection would let a client choose (section 2). But the sender's operator
//! needs to know what arrived instead of a header.

use core::fmt::{self, Display, Formatter};

use super::{v1, v2};
use crate::spp;

/// Guesses the protocol by the first bytes; `None` if it is not well known.
pub fn guess_protocol(bytes: &[u8]) -> Option<ProtocolGuess> {
    let guess = match bytes {
        [0x16, 3, 0..=4, _, _, 1, ..] => ProtocolGuess::TlsClientHello,
        [0xc0..=0xff, 0, 0, 0, 1, ..] => ProtocolGuess::Quic,
        _ if bytes.starts_with(b"SSH-") => ProtocolGuess::Ssh,
        _ if bytes.starts_with(b"PRI * HTTP/2") => ProtocolGuess::Http2,
        _ if METHODS.iter().any(|method| bytes.starts_with(method)) => ProtocolGuess::Http1,
        _ if bytes.starts_with(&spp::MAGIC) => ProtocolGuess::Spp,
        _ if bytes.starts_with(v1::KEYWORD) => ProtocolGuess::ProxyV1,
        _ if bytes.starts_with(&v2::SIGNATURE) => proxy_v2(bytes),
        _ => return None,
    };
    Some(guess)
}

/// The probable protocol of a connection or datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProtocolGuess {
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
    /// The PROXY protocol's binary version, for a stream or for no transport in particular.
    ProxyV2,
    /// The PROXY protocol's binary version, for a datagram.
    ProxyV2Datagram,
}

impl Display for ProtocolGuess {
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

fn proxy_v2(bytes: &[u8]) -> ProtocolGuess {
    match bytes.get(13).map(|family_transport| family_transport & 0xf) {
        Some(2) => ProtocolGuess::ProxyV2Datagram,
        _ => ProtocolGuess::ProxyV2,
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
    fn well_known_protocols_are_recognized() {
        let hello = [0x16, 3, 1, 0, 0x31, 1, 0, 0];
        assert_eq!(guess_protocol(&hello), Some(ProtocolGuess::TlsClientHello));
        assert_eq!(guess_protocol(b"SSH-2.0-x\r\n"), Some(ProtocolGuess::Ssh));
        assert_eq!(
            guess_protocol(b"GET / HTTP/1.1\r\n"),
            Some(ProtocolGuess::Http1)
        );
        assert_eq!(
            guess_protocol(b"PRI * HTTP/2.0\r\n"),
            Some(ProtocolGuess::Http2)
        );
        assert_eq!(guess_protocol(&[0x56, 0xec, 0]), Some(ProtocolGuess::Spp));
        assert_eq!(guess_protocol(b"PROXY TCP4 "), Some(ProtocolGuess::ProxyV1));
        assert_eq!(
            guess_protocol(&[0xc3, 0, 0, 0, 1, 8]),
            Some(ProtocolGuess::Quic)
        );
        let mut v2 = v2::SIGNATURE.to_vec();
        v2.extend([0x21, 0x12]);
        assert_eq!(guess_protocol(&v2), Some(ProtocolGuess::ProxyV2Datagram));
        v2[13] = 0x11;
        assert_eq!(guess_protocol(&v2), Some(ProtocolGuess::ProxyV2));
        assert_eq!(guess_protocol(b""), None);
        assert_eq!(guess_protocol(b"EHLO x\r\n"), None);
    }
}
