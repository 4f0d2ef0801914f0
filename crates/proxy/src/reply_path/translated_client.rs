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
pub(super) struct TranslatedClient(Mutex<Option<Refused>>);

#[derive(Clone, Copy, Debug)]
struct Refused {
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
        let mut refused = self.0.lock();
        if refused.is_some() {
            return false;
        }
        *refused = Some(Refused {
            client,
            backend,
            mark,
            confirmed_at: None,
        });
        true
    }

    /// The client, if a probe has confirmed that its address is replaced.
    pub(super) fn confirmed(&self) -> Option<IpAddr> {
        let refused = *self.0.lock();
        refused.and_then(|refused| refused.confirmed_at.map(|_| refused.client))
    }

    /// When the next probe is due; `None` without a client.
    pub(super) fn due_at(&self, now: Instant) -> Option<Instant> {
        let refused = *self.0.lock();
        refused.map(|refused| match refused.confirmed_at {
            Some(at) => at + RETRY_INTERVAL,
            None => now,
        })
    }

    /// Probes the client's path if it is due, and forgets the client if its address is not replaced (any more).
    pub(super) fn probe_when_due(&self, now: Instant) {
        let is_due = self.due_at(now).is_some_and(|at| at <= now);
        let Some(refused) = self.0.lock().filter(|_| is_due) else {
            return;
        };
        let was_confirmed = refused.confirmed_at.is_some();
        let is_replaced = refused.is_replaced();
        *self.0.lock() = is_replaced.then_some(Refused {
            confirmed_at: Some(now),
            ..refused
        });
        if was_confirmed && !is_replaced {
            tracing::info!(
                "NAT rules do not replace the address of {} any more",
                refused.client
            );
        }
    }
}

impl Refused {
    fn is_replaced(&self) -> bool {
        emitted(self.backend, self.mark, fresh_source(self.client))
            .is_ok_and(|emitted| emitted.is_some_and(|it| it.source.ip() != self.client))
    }
}
