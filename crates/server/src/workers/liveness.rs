//! The liveness check of the workers, for the watchdog and `/healthz`: does every event loop still run?

use tokio::sync::{mpsc, oneshot};

use super::command::WorkerCommand;

/// Checks that no worker hangs.
#[derive(Clone)]
pub struct Liveness(pub(crate) Vec<mpsc::UnboundedSender<WorkerCommand>>);

impl Liveness {
    /// Returns once each worker has answered; never while one of them hangs, so the caller sets the deadline.
    pub async fn check(&self) {
        let ask = |worker: &mpsc::UnboundedSender<WorkerCommand>| {
            let (reply, answer) = oneshot::channel();
            let _ = worker.send(WorkerCommand::Ping(reply));
            answer
        };
        let answers: Vec<_> = self.0.iter().map(ask).collect();
        for answer in answers {
            // A dropped sender is an answer too: `Workers::next_exit` reports a worker that has ended.
            let _ = answer.await;
        }
    }
}
