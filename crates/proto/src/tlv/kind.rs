//! The assigned types of TLVs (section 2.2), without the specification's `PP2_TYPE_`.

/// The application protocol, usually as negotiated in TLS: `h2`.
pub const ALPN: u8 = 0x01;
/// The host name that the client requested: TLS's SNI. The sender should encode it as UTF-8.
pub const AUTHORITY: u8 = 0x02;
/// A checksum over the header.
pub const CRC32C: u8 = 0x03;
/// Padding; the value means nothing.
pub const NOOP: u8 = 0x04;
/// An opaque name for the connection, at most 128 bytes.
pub const UNIQUE_ID: u8 = 0x05;
/// Facts about the client's TLS connection, see [`Ssl`](crate::Ssl).
pub const SSL: u8 = 0x20;
/// Inside SSL: the protocol's version, `TLSv1.3`.
pub const SSL_VERSION: u8 = 0x21;
/// Inside SSL: the common name in the client's certificate.
pub const SSL_CN: u8 = 0x22;
/// Inside SSL: the cipher's name.
pub const SSL_CIPHER: u8 = 0x23;
/// Inside SSL: the algorithm that signed the proxy's certificate, `RSA-SHA256`.
pub const SSL_SIG_ALG: u8 = 0x24;
/// Inside SSL: the key in the proxy's certificate, `RSA2048`.
pub const SSL_KEY_ALG: u8 = 0x25;
/// Inside SSL: the key exchange group, `secp256r1` (2025).
pub const SSL_GROUP: u8 = 0x26;
/// Inside SSL: the signature scheme, `rsa_pss_rsae_sha256` (2025).
pub const SSL_SIG_SCHEME: u8 = 0x27;
/// Inside SSL: the client's certificate in DER (2026).
pub const SSL_CLIENT_CERT: u8 = 0x28;
/// The name of the network namespace.
pub const NETNS: u8 = 0x30;
/// Google Private Service Connect's connection id, in the range for applications.
pub const GCP: u8 = 0xe0;
/// The VPC endpoint id of Amazon's network load balancer, in the range for applications.
pub const AWS: u8 = 0xea;
/// The link id of Azure Private Link, in the range for applications.
pub const AZURE: u8 = 0xee;

/// The longest UNIQUE_ID (section 2.2.5): receivers need not accept more.
pub(crate) const UNIQUE_ID_MAX: usize = 128;

/// The name of a type or of its range. Types inside SSL have names of their own ([`Ssl::name`](crate::Ssl::name)).
pub fn name(kind: u8) -> &'static str {
    match kind {
        0xe0..=0xef => "CUSTOM",
        0xf0..=0xf7 => "EXPERIMENT",
        0xf8..=0xff => "FUTURE",
        _ => NAMES
            .iter()
            .find(|(known, _)| *known == kind)
            .map_or("UNASSIGNED", |(_, name)| *name),
    }
}

/// The type of this name, in upper or lower case and with `-` or `_`. Ranges and types inside SSL have none.
pub fn from_name(name: &str) -> Option<u8> {
    NAMES
        .iter()
        .find(|(_, known)| is_same_name(known, name))
        .map(|(kind, _)| *kind)
}

/// Whether `name` is a known name, as [`from_name`] compares it.
pub(super) fn is_same_name(known: &str, name: &str) -> bool {
    known.len() == name.len()
        && known.bytes().zip(name.bytes()).all(|(known, byte)| {
            known == byte.to_ascii_uppercase() || (known, byte) == (b'_', b'-')
        })
}

const NAMES: [(u8, &str); 7] = [
    (ALPN, "ALPN"),
    (AUTHORITY, "AUTHORITY"),
    (CRC32C, "CRC32C"),
    (NOOP, "NOOP"),
    (UNIQUE_ID, "UNIQUE_ID"),
    (SSL, "SSL"),
    (NETNS, "NETNS"),
];

pub(crate) fn ssl_name(kind: u8) -> &'static str {
    match kind {
        SSL_VERSION => "SSL_VERSION",
        SSL_CN => "SSL_CN",
        SSL_CIPHER => "SSL_CIPHER",
        SSL_SIG_ALG => "SSL_SIG_ALG",
        SSL_KEY_ALG => "SSL_KEY_ALG",
        SSL_GROUP => "SSL_GROUP",
        SSL_SIG_SCHEME => "SSL_SIG_SCHEME",
        SSL_CLIENT_CERT => "SSL_CLIENT_CERT",
        _ => "UNASSIGNED",
    }
}
