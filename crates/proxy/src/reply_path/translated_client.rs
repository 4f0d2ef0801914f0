//! Watches a client that was refused because NAT rules replace its address, until they no longer do.

use std::net::IpAddr;
use std::num::NonZeroU32;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::state::RETRY_INTERVAL;
use crate::backend::Backend;
use crate::nat_probe::{fresh_source, probe_egress};

/// The first refused client, until its address is kept again.
#[derive(Debug, Default)]
pub(super) struct TranslatedClient(Mutex<Option<Suspect>>);

#[derive(Clone, Copy, Debug)]
struct Suspect {
    client: IpAddr,
    backend: Backend,
    mark: Option<NonZeroU32>,
    /// The time of the last probe; `None` before the first. `Some` means confirmed: a client that the first probe does not
    /// confirm is forgotten.
    probed_at: Option<Instant>,
    /// Whether the last probe could not tell.
    is_unclear: bool,
}

impl TranslatedClient {
    /// Notes a client, unless another is noted already. Returns whether it is new and to be probed.
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
            probed_at: None,
            is_unclear: false,
        });
        true
    }

    /// The client, if a probe has confirmed that its address is replaced.
    pub(super) fn confirmed(&self) -> Option<IpAddr> {
        let suspect = *self.0.lock();
        suspect
            .filter(|suspect| suspect.probed_at.is_some())
            .map(|suspect| suspect.client)
    }

    /// When the next probe is due; `None` without a client.
    pub(super) fn due_at(&self, now: Instant) -> Option<Instant> {
        let suspect = *self.0.lock();
        suspect.map(|suspect| suspect.probed_at.map_or(now, |at| at + RETRY_INTERVAL))
    }

    /// Probes the client's path if that is due, and forgets the client if its address is not replaced (any more). A probe that
    /// can't tell leaves a confirmed client refused.
    pub(super) fn probe_when_due(&self, now: Instant) {
        let is_due = self.due_at(now).is_some_and(|at| at <= now);
        let Some(suspect) = self.0.lock().filter(|_| is_due) else {
            return;
        };
        let client = suspect.client;
        let was_confirmed = suspect.probed_at.is_some();
        let replaced = suspect.probe();
        // A probe that can't tell changes nothing.
        let is_replaced = *replaced.as_ref().unwrap_or(&was_confirmed);
        *self.0.lock() = is_replaced.then_some(Suspect {
            probed_at: Some(now),
            is_unclear: replaced.is_err(),
            ..suspect
        });
        match replaced {
            Ok(false) if was_confirmed => {
                tracing::info!("NAT rules do not replace the address of {client} any more");
            }
            Err(reason) if was_confirmed && !suspect.is_unclear => tracing::warn!(
                "can't probe whether NAT rules still replace the address of {client}, so it stays refused: {reason}"
            ),
            _ => {}
        }
    }
}

impl Suspect {
    /// Probes whether the client's address is replaced; the error is the reason why the probe can't tell.
    fn probe(&self) -> Result<bool, String> {
        let emitted = fresh_source(self.client)
            .and_then(|source| probe_egress(self.backend, self.mark, source))
            .map_err(|error| error.to_string())?
            .ok_or_else(|| "the device does not tell what it sends".to_owned())?;
        Ok(emitted.source.ip() != self.client)
    }
}
