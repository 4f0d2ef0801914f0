//! A connection that is ready.

use std::mem;
use std::time::{Duration, Instant};

use super::header_peek::AdmittedConnection;

/// A connection that the program has not taken yet.
#[derive(Debug)]
pub(super) struct ReadyConnection {
    pub(super) admitted: AdmittedConnection,
    /// Whether the connection is counted: its handoff has failed.
    pub(super) is_counted: bool,
    /// When the listener was woken for this connection.
    pub(super) woken: Option<Instant>,
    /// Whether a wake-up connection was accepted while this connection was the oldest of its listener, or was given up in an
    /// accept backlog.
    pub(super) is_wakeup_missed: bool,
    /// How often that was so, and no process has taken the connection.
    pub(super) missed_wakeups: u32,
    /// Since when the listener can't be woken, although it listens.
    pub(super) unreachable_since: Option<Instant>,
    /// Since when the listener answers no wake-up connection.
    pub(super) unanswered_since: Option<Instant>,
}

impl ReadyConnection {
    /// A connection for which the listener was not woken yet.
    pub(super) fn new(admitted: AdmittedConnection) -> Self {
        Self {
            admitted,
            is_counted: false,
            woken: None,
            is_wakeup_missed: false,
            missed_wakeups: 0,
            unreachable_since: None,
            unanswered_since: None,
        }
    }

    /// Counts a wake-up in vain, if there was one.
    pub(super) fn count_missed_wakeup(&mut self) {
        self.missed_wakeups += u32::from(mem::take(&mut self.is_wakeup_missed));
    }

    /// How long a wake-up connection may be in an accept backlog before another one is opened. A server that hangs gets few, so
    /// that they do not fill its backlog.
    pub(super) fn patience(&self) -> Duration {
        MIN_PATIENCE * (1 << self.missed_wakeups.min(MAX_DOUBLINGS))
    }

    /// Whether the listener was woken a while ago, and the connection was not taken.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.woken.is_some_and(|at| at + WAKE_AGAIN_AFTER <= now)
    }

    /// Whether the listener has answered no wake-up connection for so long that it is given up.
    pub(super) fn is_given_up(&self, now: Instant) -> bool {
        self.unanswered_since
            .is_some_and(|since| since + MAX_UNANSWERED <= now)
    }
}

/// A program accepts a wake-up connection at once. If it has not after this time, the wake-up may have been lost.
pub(super) const WAKE_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Busy servers accept more often. Grows up to half a minute.
pub(super) const MIN_PATIENCE: Duration = Duration::from_millis(500);
const MAX_DOUBLINGS: u32 = 6;
/// Longer than a busy server has a full accept backlog.
pub(super) const MAX_UNANSWERED: Duration = Duration::from_secs(30);
