//! A key epoch: one leaf key, and the time during which it is used.
//!
//! All certificates of an epoch have its validity. So one comparison with the wall clock tells whether they are still
//! valid, and key rotation, expiry and a clock that jumps are one case: another epoch begins.

use std::ops::Range;
use std::sync::Arc;

use rcgen::{KeyPair, PKCS_RSA_SHA256, RsaKeySize};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::SigningKey;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use super::config::MintConfig;
use super::error::MintError;
use super::offer::ClientSupport;
use crate::ca::Authority;
use crate::ca::validity::DAY;

/// A leaf key with the validity of its certificates.
#[derive(Debug)]
pub(super) struct KeyEpoch {
    /// Tells its certificates from those of other epochs.
    pub(super) number: u64,
    /// The authority that signs them.
    pub(super) authority: Arc<Authority>,
    /// notBefore and notAfter of its certificates, in seconds since 1970.
    pub(super) validity: Range<u64>,
    /// When it is in use.
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
        let whole = facts.not_before..facts.not_after;
        if !whole.contains(&now) {
            return Err(MintError::Authority);
        }
        let within = |time: u64| time.clamp(whole.start, whole.end);
        let validity = within(now.saturating_sub(DAY))..within(now.saturating_add(7 * DAY));
        let lifetime = config.key_lifetime.as_secs().clamp(60, 7 * DAY);
        Ok(Self {
            number,
            // notBefore allows a day for clients' clocks that are behind. Half of it is for this clock: set back by
            // less than that, it is still within the epoch.
            use_during: validity.start.max(now.saturating_sub(DAY / 2))
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
    ///
    /// # Errors
    ///
    /// Making the RSA key failed.
    pub(super) async fn key(&self, support: ClientSupport) -> Result<&LeafKey, MintError> {
        if support.ecdsa {
            return Ok(&self.ecdsa);
        }
        let generate = || KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048);
        let make = || async {
            let pair = spawn_blocking(generate)
                .await
                .map_err(|_| MintError::Thread)??;
            LeafKey::new(pair)
        };
        self.rsa.get_or_try_init(make).await
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
