//! A cache of valid signatures of certificates, those by which an authority has signed them.
//!
//! Thousands of origins send the same few intermediate certificates, and many origins send one certificate for several names.
//! Verifying such a signature takes 80 µs with P-256 and four times as long with P-384, a cache hit 1.5 µs. All else
//! about a certificate (names, validity, constraints) is verified each time.

use std::fmt::{self, Debug, Formatter};
use std::sync::LazyLock;

use aws_lc_rs::digest;
use moka::sync::Cache;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm};

/// The library's algorithms, with a cache for the signatures of certificates. The signatures of handshakes are not cached,
/// because each is unique.
pub(super) fn algorithms() -> WebPkiSupportedAlgorithms {
    WebPkiSupportedAlgorithms {
        all: &ALL,
        ..default_provider().signature_verification_algorithms
    }
}

type Algorithm = &'static dyn SignatureVerificationAlgorithm;

static ALL: LazyLock<Vec<Algorithm>> = LazyLock::new(|| {
    let valid = Cache::new(MAX_SIGNATURES);
    let library = default_provider().signature_verification_algorithms;
    let caching = library.all.iter().map(|inner| CachingAlgorithm {
        inner: *inner,
        valid: valid.clone(),
    });
    let caching: &'static [_] = Vec::leak(caching.collect());
    caching.iter().map(|caching| caching as Algorithm).collect()
});

/// An algorithm with a cache of valid signatures.
struct CachingAlgorithm {
    inner: Algorithm,
    /// The digests of valid signatures, of all algorithms together.
    valid: Cache<[u8; 32], ()>,
}

impl SignatureVerificationAlgorithm for CachingAlgorithm {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let digest = self.digest(public_key, message, signature);
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
    /// Hashes the algorithm and the arguments by SHA-256. The length of each part is hashed, too, so that no bytes can be
    /// shifted from one part to the next.
    fn digest(&self, public_key: &[u8], message: &[u8], signature: &[u8]) -> [u8; 32] {
        let mut hash = digest::Context::new(&digest::SHA256);
        for part in [
            &*self.public_key_alg_id(),
            &*self.signature_alg_id(),
            public_key,
            message,
            signature,
        ] {
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest = hash.finish();
        *digest.as_ref().as_array().expect("SHA-256 has 32 bytes")
    }
}

impl Debug for CachingAlgorithm {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// The maximum number of signatures in the cache, at some 100 bytes each. An origin that sends a new certificate each time
/// evicts the signatures of others, which only costs one more verification of each.
const MAX_SIGNATURES: u64 = 4096;

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, SigningKey};

    use super::*;

    /// Verifies a signature of a P-256 key under a message with the caching algorithm.
    fn verify(key: &KeyPair, message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        algorithms()
            .all
            .iter()
            .find(|algorithm| {
                (algorithm.public_key_alg_id(), algorithm.signature_alg_id())
                    == (
                        rustls::pki_types::alg_id::ECDSA_P256,
                        rustls::pki_types::alg_id::ECDSA_SHA256,
                    )
            })
            .expect("ECDSA with P-256")
            .verify_signature(rcgen::PublicKeyData::der_bytes(key), message, signature)
    }

    #[test]
    fn only_valid_signatures_are_cached() {
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

    /// Without one of the algorithms, chains that the library accepts would be refused.
    #[test]
    fn every_algorithm_of_the_library_is_wrapped() {
        let ids = |algorithms: &[Algorithm]| -> Vec<_> {
            algorithms
                .iter()
                .map(|algorithm| (algorithm.public_key_alg_id(), algorithm.signature_alg_id()))
                .collect()
        };
        let library = default_provider().signature_verification_algorithms;
        assert_eq!(ids(algorithms().all), ids(library.all));
    }
}
