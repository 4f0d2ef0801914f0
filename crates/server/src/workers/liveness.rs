//! The liveness check of the workers, for the watchdog and `/healthz`: whether every event loop still runs.

use super::command::WorkerCalls;

/// Checks that no worker hangs.
#[derive(Clone)]
pub struct Liveness(pub(super) WorkerCalls);

impl Liveness {
    /// Returns once each worker has answered; never while one of them hangs, so the caller sets the deadline.
    pub async fn check(&self) {
        let answers: Vec<_> = (0..self.0.workers())
            .map(|worker| self.0.call(worker, || ()))
            .collect();
        for answer in answers {
            // An exit is an answer too: `Workers::next_exit` reports it.
            let _ = answer.await;
        }
    }
}
