//! A key epoch: one leaf key, and the time during which it is used.
//!
//! All certificates of an epoch have the same validity. So one comparison with the wall clock tells whether they are still
//! valid, and key rotation, expiry and a jump of the clock are handled alike: a new epoch begins.

use std::ops::Range;
use std::sync::Arc;

use peername_server::threads::spawn_request_call;
use rcgen::{KeyPair, PKCS_RSA_SHA256, RsaKeySize};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::SigningKey;
use tokio::sync::OnceCell;

use super::client_support::ClientSupport;
use super::config::MintConfig;
use super::error::MintError;
use crate::ca::Authority;
use crate::ca::validity::DAY;

/// A leaf key with the validity of its certificates.
#[derive(Debug)]
pub(super) struct KeyEpoch {
    /// Distinguishes the epoch's certificates from those of other epochs.
    pub(super) number: u64,
    /// The authority that signs the certificates.
    pub(super) authority: Arc<Authority>,
    /// notBefore and notAfter of the certificates, in seconds since 1970.
    pub(super) validity: Range<u64>,
    /// When the epoch is in use, in seconds since 1970.
    use_during: Range<u64>,
    ecdsa: LeafKey,
    /// Made for the first client that needs it.
    rsa: OnceCell<LeafKey>,
}

/// A key for handshakes and certificates.
#[derive(Debug)]
pub(super) struct LeafKey {
    pub(super) pair: KeyPair,
    /// The same key, as the TLS library takes it.
    pub(super) private: Arc<dyn SigningKey>,
}

impl KeyEpoch {
    /// Begins an epoch now.
    ///
    /// # Errors
    ///
    /// [`MintError::Authority`] if the authority is not valid; or making the key failed.
    pub(super) fn begin(
        number: u64,
        authority: Arc<Authority>,
        config: &MintConfig,
    ) -> Result<Self, MintError> {
        let now = config.now()?;
        let facts = authority.facts();
        if !(facts.not_before..facts.not_after).contains(&now) {
            return Err(MintError::Authority);
        }
        let validity = facts.not_before.max(now.saturating_sub(CLOCK_SKEW))
            ..facts.not_after.min(now.saturating_add(MAX_LIFETIME));
        let lifetime = config
            .key_lifetime
            .as_secs()
            .clamp(MIN_LIFETIME, MAX_LIFETIME);
        Ok(Self {
            number,
            // Half of the skew is for this host's clock: if it is set back by less, the epoch goes on.
            use_during: validity.start.max(now.saturating_sub(CLOCK_SKEW / 2))
                ..validity.end.min(now.saturating_add(lifetime)),
            ecdsa: LeafKey::new(KeyPair::generate()?)?,
            validity,
            authority,
            rsa: OnceCell::new(),
        })
    }

    pub(super) fn is_valid(&self, now: u64) -> bool {
        self.use_during.contains(&now)
    }

    /// The key for a client with this support. An RSA-2048 key takes a sixth of a second to make, so a thread makes it,
    /// once, however many clients wait.
    pub(super) async fn key(&self, support: ClientSupport) -> Result<&LeafKey, MintError> {
        if support.ecdsa {
            return Ok(&self.ecdsa);
        }
        let generate = || KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048);
        self.rsa
            .get_or_try_init(|| async {
                let pair = spawn_request_call(generate)
                    .await
                    .map_err(|_| MintError::Thread)??;
                LeafKey::new(pair)
            })
            .await
    }
}

impl LeafKey {
    fn new(pair: KeyPair) -> Result<Self, MintError> {
        let private = PrivatePkcs8KeyDer::from(pair.serialized_der());
        Ok(Self {
            private: any_supported_type(&private.into())?,
            pair,
        })
    }
}

/// Seconds by which a client's clock may be behind: notBefore is that long ago.
const CLOCK_SKEW: u64 = DAY;
/// Seconds for which a key is used at least.
const MIN_LIFETIME: u64 = 60;
/// Seconds until notAfter, and for which a key is used at most.
const MAX_LIFETIME: u64 = 7 * DAY;
