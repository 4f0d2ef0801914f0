//! One leaf key, and the time during which it is used.
//!
//! All certificates of a season have its validity. So whether any of them is still good is one comparison with
//! the wall clock, and the daily new key, expiry and a clock that jumps are one thing: another season begins.

use std::ops::Range;
use std::sync::Arc;

use rcgen::{KeyPair, PKCS_RSA_SHA256, RsaKeySize};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::SigningKey;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use super::leaf_certificate::Pattern;
use super::{Error, Offer, Settings};
use crate::ca::{Authority, DAY};

/// See above.
#[derive(Debug)]
pub(super) struct Season {
    /// Tells its certificates from those of other seasons.
    pub(super) number: u64,
    /// Who signs them.
    pub(super) authority: Arc<Authority>,
    /// notBefore and notAfter of its certificates, in seconds since 1970.
    validity: Range<u64>,
    /// When it is in use.
    use_during: Range<u64>,
    ecdsa: Key,
    /// Made when the first client needs it.
    rsa: OnceCell<Key>,
}

/// A key for handshakes, and what its certificates are like.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) pattern: Pattern,
    pub(super) private: Arc<dyn SigningKey>,
}

impl Season {
    /// Begins now, if the authority is valid.
    pub(super) fn begin(
        number: u64,
        authority: Arc<Authority>,
        settings: &Settings,
    ) -> Result<Self, Error> {
        let now = now(settings)?;
        let facts = authority.facts();
        let whole = facts.not_before..facts.not_after;
        if !whole.contains(&now) {
            return Err(Error::Authority);
        }
        let within = |time: u64| time.clamp(whole.start, whole.end);
        let validity = within(now.saturating_sub(DAY))..within(now.saturating_add(7 * DAY));
        let lifetime = settings.key_lifetime.as_secs().clamp(60, 7 * DAY);
        Ok(Self {
            number,
            // Half of the day that notBefore allows for clocks behind ours: one that is set back by as little
            // as that is still right.
            use_during: validity.start.max(now.saturating_sub(DAY / 2))
                ..validity.end.min(now.saturating_add(lifetime)),
            ecdsa: Key::new(&KeyPair::generate()?, &authority, &validity)?,
            validity,
            authority,
            rsa: OnceCell::new(),
        })
    }

    pub(super) fn is_good(&self, now: u64) -> bool {
        self.use_during.contains(&now)
    }

    /// The key for such a client. RSA-2048 takes a sixth of a second to make, so a thread of its own does it,
    /// once, however many wait.
    pub(super) async fn key(&self, offer: Offer) -> Result<&Key, Error> {
        if offer.ecdsa {
            return Ok(&self.ecdsa);
        }
        let generate = || KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048);
        let make = || async {
            let pair = spawn_blocking(generate)
                .await
                .map_err(|_| Error::Thread)??;
            Key::new(&pair, &self.authority, &self.validity)
        };
        self.rsa.get_or_try_init(make).await
    }
}

impl Key {
    fn new(pair: &KeyPair, authority: &Authority, validity: &Range<u64>) -> Result<Self, Error> {
        let private = PrivatePkcs8KeyDer::from(pair.serialized_der());
        Ok(Self {
            pattern: Pattern::new(authority, validity, pair)?,
            private: any_supported_type(&private.into())?,
        })
    }
}

/// Seconds since 1970, by the clock of these settings.
pub(super) fn now(settings: &Settings) -> Result<u64, Error> {
    Ok(settings.clock.current_time().ok_or(Error::Clock)?.as_secs())
}
