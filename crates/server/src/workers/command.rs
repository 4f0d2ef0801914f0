//! The commands that the control side sends to a running worker, among them calls that run between its connections.

use std::net::TcpListener;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::phases::WorkerTask;
use crate::listeners::{Listener, ListenerId};

/// A worker's listening sockets.
pub(crate) type SharedListeners = Vec<(ListenerId, Arc<TcpListener>)>;

/// A command for a running worker.
pub(crate) enum WorkerCommand {
    /// Accept from these listeners, too.
    Open(Vec<Listener>),
    /// Run this task, too.
    Spawn(WorkerTask),
    /// Call this function, which must be short.
    Call(Box<dyn FnOnce() + Send>),
    /// Close these listeners, then answer.
    Close(Arc<[ListenerId]>, oneshot::Sender<()>),
    /// Answer with the listening sockets.
    Share(oneshot::Sender<SharedListeners>),
    /// Leave the accept backlogs of these listeners to another process when they are closed, and answer.
    LeaveBacklogs(Arc<[ListenerId]>, oneshot::Sender<()>),
}

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
