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
    /// When a probe last showed that the address is replaced; `None` before the first probe.
    confirmed_at: Option<Instant>,
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
        let is_replaced = suspect.is_replaced();
        *self.0.lock() = is_replaced.unwrap_or(was_confirmed).then_some(Suspect {
            confirmed_at: Some(now),
            ..suspect
        });
        if was_confirmed && is_replaced == Some(false) {
            tracing::info!(
                "NAT rules do not replace the address of {} any more",
                suspect.client
            );
        }
    }
}

impl Suspect {
    /// `None` if the probe could not tell.
    fn is_replaced(&self) -> Option<bool> {
        let emitted = emitted(self.backend, self.mark, fresh_source(self.client)).ok()??;
        Some(emitted.source.ip() != self.client)
    }
}
