//! What goes on on one client connection, and that it does not stand still.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::http::client_connection::Client;

/// The exchanges of one client connection.
#[derive(Debug)]
pub(crate) struct Exchanges(Mutex<State>);

#[derive(Debug)]
struct State {
    open: usize,
    /// Of all that there have been.
    begun: u64,
    /// When there was one last.
    last: Instant,
    watched: Vec<Watched>,
}

/// An answer on its way, which can be given up from outside.
pub(crate) trait Moves: std::fmt::Debug + Send + Sync {
    /// How much has gone so far, in both directions; `None` once it is over.
    fn moved(&self) -> Option<u64>;

    /// Ends it: nothing has moved for too long.
    fn give_up(&self);
}

#[derive(Debug)]
struct Watched {
    what: Weak<dyn Moves>,
    limit: Duration,
    moved: u64,
    since: Instant,
}

impl Default for Exchanges {
    fn default() -> Self {
        Self(Mutex::new(State {
            open: 0,
            begun: 0,
            last: Instant::now(),
            watched: Vec::new(),
        }))
    }
}

impl Exchanges {
    /// Gives up what does not move for as long as `limit`.
    pub(crate) fn watch(&self, what: Weak<dyn Moves>, limit: Duration) {
        let mut state = self.lock();
        state.watched.retain(|one| one.what.strong_count() > 0);
        state.watched.push(Watched {
            what,
            limit,
            moved: 0,
            since: Instant::now(),
        });
    }

    /// Watches over them; returns once there has been none for as long as `idle`.
    pub(crate) async fn idle(&self, idle: Duration) {
        loop {
            sleep(idle / LOOKS).await;
            let now = Instant::now();
            for still in self.standing_still(now) {
                still.give_up();
            }
            let state = self.lock();
            if state.open == 0 && now.saturating_duration_since(state.last) >= idle {
                return;
            }
        }
    }

    /// How many there have been.
    pub(crate) fn begun(&self) -> u64 {
        self.lock().begun
    }

    /// Whether there is none now.
    pub(crate) fn are_none(&self) -> bool {
        self.lock().open == 0
    }

    fn standing_still(&self, now: Instant) -> Vec<Arc<dyn Moves>> {
        let mut still = Vec::new();
        let mut watched = std::mem::take(&mut self.lock().watched);
        watched.retain_mut(|one| {
            let Some(what) = one.what.upgrade() else {
                return false;
            };
            match what.moved() {
                None => return false,
                Some(moved) if moved != one.moved => (one.moved, one.since) = (moved, now),
                Some(_) => {}
            }
            let is_still = now.duration_since(one.since) >= one.limit;
            if is_still {
                still.push(what);
            }
            !is_still
        });
        self.lock().watched.append(&mut watched);
        still
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of them, until this is dropped.
#[derive(Debug)]
pub(crate) struct Open(Arc<Client>);

impl Open {
    pub(crate) fn new(client: &Arc<Client>) -> Self {
        let mut state = client.exchanges.lock();
        state.open += 1;
        state.begun += 1;
        drop(state);
        Self(Arc::clone(client))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.0.exchanges.lock();
        state.open -= 1;
        state.last = Instant::now();
    }
}

/// Of each idle timeout.
const LOOKS: u32 = 4;
