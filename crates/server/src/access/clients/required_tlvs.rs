//! TLVs that a header must have (`--require-tlv`), even if it comes from a trusted balancer.
//!
//! Customers of a cloud may reach its balancer by VPC endpoints of their own. The balancer adds a TLV with the endpoint's id.

use std::collections::BTreeMap;
use std::str::FromStr;

use data_encoding::HEXLOWER_PERMISSIVE;
use peername_proto::{Command, Header, Tlv, Vendor, kind};

use super::refusal::ClientRefusal;

/// A required TLV: `NAME=VALUE`, or `0xNN=HEX` for any type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredTlv {
    kind: u8,
    expected: Expected,
}

/// The value that a TLV must have.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expected {
    Bytes(Vec<u8>),
    /// Compared without regard to case.
    HostName(String),
}

/// The required TLVs: of each type that is listed, one of the values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequiredTlvs(BTreeMap<u8, Vec<Expected>>);

/// The reason why a text is no required TLV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseRequiredTlvError {
    /// The name is not known, or the text has another form.
    #[error(
        "use NAME=VALUE, the name one of alpn, authority, {}, or a number: 0xEA=HEX",
        Vendor::option_names().join(", ")
    )]
    Form,
    /// The value of a number is not hexadecimal.
    #[error("after a number the value is in hexadecimal: 0xEA=0176706365")]
    Hex,
    /// No balancer of the vendor sends this value, for this reason. It would match no header.
    #[error("{0}")]
    Value(&'static str),
    /// The value is empty.
    #[error("the value is empty")]
    Empty,
}

impl FromStr for RequiredTlv {
    type Err = ParseRequiredTlvError;

    fn from_str(text: &str) -> Result<Self, ParseRequiredTlvError> {
        use ParseRequiredTlvError::{Empty, Form, Hex, Value};
        let (name, value) = text.split_once('=').ok_or(Form)?;
        if value.is_empty() && !name.starts_with("0x") {
            return Err(Empty);
        }
        if let Some(kind) = Vendor::kind_from_name(name) {
            let expected = Expected::Bytes(Vendor::encode(kind, value).map_err(Value)?);
            return Ok(Self { kind, expected });
        }
        let (kind, expected) = match kind::from_name(name) {
            Some(kind::ALPN) => (kind::ALPN, Expected::Bytes(value.into())),
            Some(kind::AUTHORITY) => (kind::AUTHORITY, Expected::HostName(value.to_owned())),
            _ => {
                let number = name.strip_prefix("0x").ok_or(Form)?;
                let kind = u8::from_str_radix(number, 16).map_err(|_| Form)?;
                let bytes = HEXLOWER_PERMISSIVE.decode(value.as_bytes());
                (kind, Expected::Bytes(bytes.map_err(|_| Hex)?))
            }
        };
        Ok(Self { kind, expected })
    }
}

impl FromIterator<RequiredTlv> for RequiredTlvs {
    fn from_iter<I: IntoIterator<Item = RequiredTlv>>(required: I) -> Self {
        let mut by_kind = BTreeMap::<u8, Vec<Expected>>::new();
        for RequiredTlv { kind, expected } in required {
            by_kind.entry(kind).or_default().push(expected);
        }
        Self(by_kind)
    }
}

impl RequiredTlvs {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that a header for a client has a TLV of each required type, and that all its TLVs of these types have listed
    /// values: of two different values, one would be wrong.
    pub(super) fn check(&self, header: &Header<'_>) -> Result<(), ClientRefusal> {
        if self.is_empty() || header.command != Command::Proxy {
            return Ok(());
        }
        for (&kind, values) in &self.0 {
            let mut found = header.tlvs.iter().filter(|tlv| tlv.kind == kind).peekable();
            if found.peek().is_none() {
                return Err(ClientRefusal::TlvMissing { kind });
            }
            if !found.all(|tlv| values.iter().any(|value| value.matches(tlv))) {
                return Err(ClientRefusal::TlvMismatch { kind });
            }
        }
        Ok(())
    }
}

impl Expected {
    fn matches(&self, tlv: Tlv<'_>) -> bool {
        match self {
            Self::Bytes(bytes) => bytes == tlv.value,
            Self::HostName(name) => name.as_bytes().eq_ignore_ascii_case(tlv.value),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use peername_proto::{Carrier, Parsed, Transport, V2Writer, parse, write_v1, write_v1_unknown};

    use super::*;

    fn check(required: &[&str], header: &[u8]) -> Result<(), ClientRefusal> {
        let required: RequiredTlvs = required
            .iter()
            .map(|text| text.parse::<RequiredTlv>().unwrap())
            .collect();
        let Ok(Parsed::Complete(header)) = parse(header, Carrier::Stream) else {
            panic!("an invalid header")
        };
        required.check(&header)
    }

    fn with_tlvs(tlvs: &[(u8, &[u8])]) -> Vec<u8> {
        let addr = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (client, front) = (addr("203.0.113.9:1"), addr("203.0.113.1:2"));
        let mut out = Vec::new();
        let mut writer = V2Writer::proxy(&mut out, Transport::Stream, client, front);
        for (kind, value) in tlvs {
            writer = writer.tlv(*kind, value);
        }
        writer.finish().unwrap();
        out
    }

    #[test]
    fn values_of_one_type_are_alternatives_and_types_add_up() {
        let required = ["alpn=h2", "alpn=http/1.1", "authority=Example.org"];
        let header = |alpn: &[u8], name: &[u8]| with_tlvs(&[(1, alpn), (2, name)]);
        let missing = |kind| Err(ClientRefusal::TlvMissing { kind });
        let mismatch = |kind| Err(ClientRefusal::TlvMismatch { kind });
        for (header, verdict) in [
            (header(b"h2", b"example.ORG"), Ok(())),
            (header(b"http/1.1", b"example.org"), Ok(())),
            (header(b"h3", b"example.org"), mismatch(1)),
            (header(b"h2", b"example.org."), mismatch(2)),
            (with_tlvs(&[(1, b"h2")]), missing(2)),
        ] {
            assert_eq!(check(&required, &header), verdict);
        }
    }

    #[test]
    fn cloud_ids_are_given_in_the_notation_of_the_cloud() {
        let aws = with_tlvs(&[(0xea, b"\x01vpce-08d2bf15fac5001c9")]);
        assert_eq!(check(&["aws-vpce-id=vpce-08d2bf15fac5001c9"], &aws), Ok(()));
        assert!(check(&["aws-vpce-id=vpce-08d2bf15fac5001c8"], &aws).is_err());
        // No balancer sends such an id.
        for id in ["08d2bf15fac5001c9", "vpce-08d2 "] {
            assert!(format!("aws-vpce-id={id}").parse::<RequiredTlv>().is_err());
        }
        let azure = with_tlvs(&[(0xee, &[1, 4, 3, 2, 1])]);
        assert_eq!(check(&["azure-linkid=16909060"], &azure), Ok(()));
        let gcp = with_tlvs(&[(0xe0, &[0, 0, 0, 0, 0, 0, 1, 0])]);
        assert_eq!(check(&["gcp-psc-id=256"], &gcp), Ok(()));
        let custom = with_tlvs(&[(0xe4, &[0xca, 0xfe])]);
        assert_eq!(check(&["0xE4=cafe"], &custom), Ok(()));
        assert!(check(&["0xE4=cafe00"], &custom).is_err());
    }

    #[test]
    fn repeated_tlv_must_have_listed_values_only() {
        let twice = with_tlvs(&[(1, b"h2"), (1, b"h3")]);
        assert!(check(&["alpn=h2"], &twice).is_err());
        assert_eq!(check(&["alpn=h2", "alpn=h3"], &twice), Ok(()));
    }

    #[test]
    fn version_1_lacks_tlvs_and_headers_without_a_client_need_none() {
        let required = ["alpn=h2"];
        let mut v1 = Vec::new();
        let [client, front] = ["203.0.113.9:1", "203.0.113.1:2"].map(|addr| addr.parse().unwrap());
        write_v1(&mut v1, client, front);
        let missing = Err(ClientRefusal::TlvMissing { kind: 1 });
        assert_eq!(check(&required, &v1), missing);
        let mut unknown = Vec::new();
        write_v1_unknown(&mut unknown);
        assert_eq!(check(&required, &unknown), Ok(()));
        let local = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";
        assert_eq!(check(&required, local), Ok(()));
    }

    #[test]
    fn invalid_texts_are_rejected() {
        use ParseRequiredTlvError::{Empty, Form, Hex, Value};
        let no_number = Value("the id is a decimal number");
        for (text, error) in [
            ("alpn", Form),
            ("colour=red", Form),
            ("0x1EA=00", Form),
            ("alpn=", Empty),
            ("0xEA=0", Hex),
            ("0xEA=zz", Hex),
            ("azure-linkid=4294967296", no_number),
            ("gcp-psc-id=x", no_number),
        ] {
            assert_eq!(text.parse::<RequiredTlv>(), Err(error), "{text}");
        }
    }
}
