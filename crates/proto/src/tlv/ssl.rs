//! The SSL TLV: facts about the client's TLS connection (section 2.2.6).

use super::block::{Tlv, Tlvs};
use super::kind;

/// The value of an SSL TLV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ssl<'a> {
    /// [`Ssl::TLS`], [`Ssl::CERT_CONN`] and [`Ssl::CERT_SESS`]; other bits are undefined.
    pub client: u8,
    /// 0 if the client's certificate was verified. Without [`Ssl::CERT_CONN`] or [`Ssl::CERT_SESS`] 0 proves nothing.
    pub verify: u32,
    /// The details, see `SSL_…` in [`kind`].
    pub tlvs: Tlvs<'a>,
}

impl<'a> Ssl<'a> {
    /// Client bit: the client used TLS.
    pub const TLS: u8 = 0x01;
    /// Client bit: the client showed a certificate on this connection.
    pub const CERT_CONN: u8 = 0x02;
    /// Client bit: the client showed a certificate at least once in this TLS session.
    pub const CERT_SESS: u8 = 0x04;

    /// Reads the value of an SSL TLV; `None` if it is shorter than 5 bytes, or not filled by whole TLVs.
    pub fn read(value: &'a [u8]) -> Option<Self> {
        let ([client, verify @ ..], rest) = value.split_first_chunk::<5>()?;
        let tlvs = Tlvs::framed(rest)?;
        Some(Self {
            client: *client,
            verify: u32::from_be_bytes(*verify),
            tlvs,
        })
    }

    /// Whether the client used TLS.
    pub fn is_tls(&self) -> bool {
        self.client & Self::TLS != 0
    }

    /// The name of a TLV inside the SSL TLV, without the specification's `PP2_SUBTYPE_`.
    pub fn name(tlv: Tlv<'_>) -> &'static str {
        kind::ssl_name(tlv.kind)
    }
}

impl<'a> Tlvs<'a> {
    /// The first SSL TLV, if there is a valid one.
    pub fn ssl(self) -> Option<Ssl<'a>> {
        self.get(kind::SSL).and_then(Ssl::read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_filled_by_whole_details() {
        assert_eq!(Ssl::read(&[1, 0, 0, 0]), None);
        assert_eq!(Ssl::read(&[1, 0, 0, 0, 0, 0x21]), None);
        assert_eq!(Ssl::read(&[1, 0, 0, 0, 0, 0x21, 0, 1]), None);
        let ssl = Ssl::read(&[1, 0, 0, 0, 0, 0x21, 0, 1, b'x']).unwrap();
        assert_eq!(ssl.tlvs.get(kind::SSL_VERSION), Some(b"x".as_slice()));
        assert_eq!(
            ssl.tlvs.iter().map(Ssl::name).collect::<Vec<_>>(),
            ["SSL_VERSION"]
        );
    }
}
