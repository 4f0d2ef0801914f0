//! A cache of valid signatures under certificates.
//!
//! Thousands of origins send the same few intermediate certificates, and many send one certificate for several names.
//! Whether a key has signed those bytes is the same each time; to verify it takes 80 µs with P-256 and four times that with
//! P-384, a cache hit 1.5 µs. All else about a certificate (names, validity, what it may issue) is checked each time.

use std::fmt::{self, Debug, Formatter};
use std::sync::LazyLock;

use moka::sync::Cache;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm};

/// The library's algorithms, with a cache for signatures under certificates. The signatures of handshakes, which never come
/// twice, are not cached.
pub(super) fn algorithms() -> WebPkiSupportedAlgorithms {
    WebPkiSupportedAlgorithms {
        all: &ALL,
        ..default_provider().signature_verification_algorithms
    }
}

type Algorithm = &'static dyn SignatureVerificationAlgorithm;

static ALL: LazyLock<Vec<Algorithm>> =
    LazyLock::new(|| CACHING.iter().map(|one| one as Algorithm).collect());

static CACHING: LazyLock<Vec<CachingAlgorithm>> = LazyLock::new(|| {
    let all = default_provider().signature_verification_algorithms.all;
    let valid = Cache::new(MAX_SIGNATURES);
    let caching = |inner: &Algorithm| CachingAlgorithm {
        inner: *inner,
        valid: valid.clone(),
    };
    all.iter().map(caching).collect()
});

/// An algorithm with a cache of the signatures that it found valid.
struct CachingAlgorithm {
    inner: Algorithm,
    valid: Cache<[u8; 32], ()>,
}

impl SignatureVerificationAlgorithm for CachingAlgorithm {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let digest = self.digest(&[public_key, message, signature]);
        if self.valid.get(&digest).is_some() {
            return Ok(());
        }
        self.inner
            .verify_signature(public_key, message, signature)?;
        self.valid.insert(digest, ());
        Ok(())
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.inner.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.inner.signature_alg_id()
    }

    fn fips(&self) -> bool {
        self.inner.fips()
    }
}

impl CachingAlgorithm {
    /// SHA-256 of the algorithm and the parts, each with its length before it, so that no two inputs have one digest.
    fn digest(&self, parts: &[&[u8]]) -> [u8; 32] {
        let suite = TLS13_AES_128_GCM_SHA256.tls13();
        let mut hash = suite
            .expect("a suite of TLS 1.3")
            .common
            .hash_provider
            .start();
        let (key, signature) = (self.public_key_alg_id(), self.signature_alg_id());
        for part in [&*key, &*signature].iter().chain(parts) {
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest = hash.finish();
        digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

impl Debug for CachingAlgorithm {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Signatures in the cache, of 100 bytes or so each. An origin that sends a new certificate each time evicts those of others,
/// which costs one more verification of these and nothing else.
const MAX_SIGNATURES: u64 = 4096;

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, SigningKey};

    use super::*;

    /// Verifies a signature of a P-256 key under a message with the caching algorithm.
    fn verify(key: &KeyPair, message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        let mut all = algorithms().all.iter();
        let p256 = all.find(|one| {
            (one.public_key_alg_id(), one.signature_alg_id())
                == (
                    rustls::pki_types::alg_id::ECDSA_P256,
                    rustls::pki_types::alg_id::ECDSA_SHA256,
                )
        });
        let p256 = p256.expect("ECDSA with P-256");
        p256.verify_signature(rcgen::PublicKeyData::der_bytes(key), message, signature)
    }

    #[test]
    fn only_a_signature_that_was_valid_is_cached() {
        let [key, other] = [(); 2].map(|()| KeyPair::generate().unwrap());
        let signature = key.sign(b"message").unwrap();
        for _ in 0..3 {
            assert!(verify(&key, b"message", &signature).is_ok());
            assert!(verify(&key, b"massage", &signature).is_err());
            assert!(verify(&other, b"message", &signature).is_err());
            let mut wrong = signature.clone();
            *wrong.last_mut().unwrap() ^= 1;
            assert!(verify(&key, b"message", &wrong).is_err());
            assert!(verify(&key, b"messag", &[b"e", &signature[..]].concat()).is_err());
        }
    }

    /// The cache wraps each of the library's algorithms: without one of them, chains that the library accepts would be
    /// refused.
    #[test]
    fn no_algorithm_is_missing() {
        let ids = |all: &[Algorithm]| -> Vec<_> {
            let id = |one: &Algorithm| (one.public_key_alg_id(), one.signature_alg_id());
            all.iter().map(id).collect()
        };
        let library = default_provider().signature_verification_algorithms;
        assert_eq!(ids(algorithms().all), ids(library.all));
    }
}
