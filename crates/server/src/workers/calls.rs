//! Calls from the control side that run on a worker, between its connections.

use tokio::sync::{mpsc, oneshot};

use super::command::WorkerCommand;

/// Runs functions on the workers.
#[derive(Clone)]
pub(crate) struct WorkerCalls(pub(super) Vec<mpsc::UnboundedSender<WorkerCommand>>);

impl WorkerCalls {
    pub(super) fn workers(&self) -> usize {
        self.0.len()
    }

    /// Runs `work` on a worker; the receiver gets its result, or an error if the worker has exited. `work` must be short:
    /// the worker's connections wait for it.
    pub(super) fn call<T: Send + 'static>(
        &self,
        worker: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (reply, answer) = oneshot::channel();
        let call = Box::new(move || {
            // The caller may have stopped waiting.
            let _ = reply.send(work());
        });
        if let Some(worker) = self.0.get(worker) {
            let _ = worker.send(WorkerCommand::Call(call));
        }
        answer
    }
}
