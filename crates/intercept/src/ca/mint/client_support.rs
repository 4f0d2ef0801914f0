//! The algorithms that a client supports, as far as they decide which certificate it gets.

use rustls::server::ClientHello;
use rustls::{CipherSuite, SignatureScheme};

/// The algorithms that a client supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientSupport {
    /// Whether it can verify a handshake that a P-256 key signed. If not, it gets a certificate of an RSA key, which
    /// still has the authority's P-256 signature.
    pub ecdsa: bool,
}

impl ClientSupport {
    /// Reads the support for ECDSA from a ClientHello: the signature scheme, and a cipher suite for it (TLS 1.2 has separate
    /// suites for RSA).
    #[must_use]
    pub fn from_client_hello(hello: &ClientHello<'_>) -> Self {
        let has_scheme = hello
            .signature_schemes()
            .contains(&SignatureScheme::ECDSA_NISTP256_SHA256);
        Self {
            ecdsa: has_scheme && hello.cipher_suites().iter().any(is_for_ecdsa),
        }
    }
}

fn is_for_ecdsa(suite: &CipherSuite) -> bool {
    use CipherSuite as Suite;
    matches!(
        suite,
        Suite::TLS13_AES_128_GCM_SHA256
            | Suite::TLS13_AES_256_GCM_SHA384
            | Suite::TLS13_CHACHA20_POLY1305_SHA256
            | Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
            | Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
    )
}
