//! A client that was refused because NAT rules replace its address: whether they still do.

use std::net::IpAddr;
use std::num::NonZeroU32;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::state::RETRY_INTERVAL;
use crate::backend::Backend;
use crate::translation::{emitted, fresh_source};

/// The client that was refused first, until its address is kept again.
#[derive(Debug, Default)]
pub(super) struct TranslatedClient(Mutex<Option<Suspect>>);

#[derive(Clone, Copy, Debug)]
struct Suspect {
    client: IpAddr,
    backend: Backend,
    mark: Option<NonZeroU32>,
    /// When the last probe was sent after which the address counts as replaced; `None` before the first one.
    confirmed_at: Option<Instant>,
    /// Whether it was logged that a probe could not tell; until one can.
    is_unclear: bool,
}

impl TranslatedClient {
    /// Notes a client, unless there is one. Returns whether it is to be probed.
    pub(super) fn report(
        &self,
        client: IpAddr,
        backend: Backend,
        mark: Option<NonZeroU32>,
    ) -> bool {
        let mut suspect = self.0.lock();
        if suspect.is_some() {
            return false;
        }
        *suspect = Some(Suspect {
            client,
            backend,
            mark,
            confirmed_at: None,
            is_unclear: false,
        });
        true
    }

    /// The client, if a probe has confirmed that its address is replaced.
    pub(super) fn confirmed(&self) -> Option<IpAddr> {
        let suspect = *self.0.lock();
        suspect.and_then(|suspect| suspect.confirmed_at.map(|_| suspect.client))
    }

    /// When the next probe is due; `None` without a client.
    pub(super) fn due_at(&self, now: Instant) -> Option<Instant> {
        let suspect = *self.0.lock();
        suspect.map(|suspect| match suspect.confirmed_at {
            Some(at) => at + RETRY_INTERVAL,
            None => now,
        })
    }

    /// Probes the client's path if it is due, and forgets the client if its address is not replaced (any more). A probe that can't
    /// tell changes nothing that another one has shown.
    pub(super) fn probe_when_due(&self, now: Instant) {
        let is_due = self.due_at(now).is_some_and(|at| at <= now);
        let Some(suspect) = self.0.lock().filter(|_| is_due) else {
            return;
        };
        let was_confirmed = suspect.confirmed_at.is_some();
        let (is_replaced, client) = (suspect.is_replaced(), suspect.client);
        let is_refused = match is_replaced {
            Ok(is_replaced) => is_replaced,
            Err(_) => was_confirmed,
        };
        *self.0.lock() = is_refused.then_some(Suspect {
            confirmed_at: Some(now),
            is_unclear: is_replaced.is_err(),
            ..suspect
        });
        match is_replaced {
            Ok(false) if was_confirmed => {
                tracing::info!("NAT rules do not replace the address of {client} any more");
            }
            Err(why) if was_confirmed && !suspect.is_unclear => tracing::warn!(
                "can't probe whether NAT rules still replace the address of {client}, so it stays refused: {why}"
            ),
            _ => {}
        }
    }
}

impl Suspect {
    /// # Errors
    ///
    /// Why the probe could not tell.
    fn is_replaced(&self) -> Result<bool, String> {
        let emitted = fresh_source(self.client)
            .and_then(|source| emitted(self.backend, self.mark, source))
            .map_err(|error| error.to_string())?
            .ok_or_else(|| "the device does not tell what it sends".to_owned())?;
        Ok(emitted.source.ip() != self.client)
    }
}
