//! The open sessions of all workers, for listings.
//!
//! A session belongs to its worker, so the control side asks each worker for a batch at a time.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{StreamExt, stream};
use peername_observe::connections::{ConnectionSnapshot, ConnectionSource, SnapshotStream};
use tokio::sync::{mpsc, oneshot};

/// The workers to ask. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct OpenSessions(Arc<Mutex<Vec<mpsc::UnboundedSender<SessionQuery>>>>);

/// A request for a batch of sessions.
#[derive(Debug)]
pub(crate) struct SessionQuery {
    /// The slot that the batch begins at.
    pub(crate) from: usize,
    pub(crate) reply: oneshot::Sender<SessionBatch>,
}

/// Snapshots, and the slot to go on from; `None` at the end.
pub(crate) type SessionBatch = (Vec<ConnectionSnapshot>, Option<usize>);

impl OpenSessions {
    /// Adds a worker, which answers queries until it drops the receiver.
    pub(crate) fn add_worker(&self) -> mpsc::UnboundedReceiver<SessionQuery> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|worker| !worker.is_closed());
        workers.push(sender);
        receiver
    }

    fn workers(&self) -> Vec<mpsc::UnboundedSender<SessionQuery>> {
        let workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        workers.clone()
    }
}

impl ConnectionSource for OpenSessions {
    fn snapshots(&self) -> SnapshotStream {
        let of_worker = |worker: mpsc::UnboundedSender<SessionQuery>| {
            stream::unfold(Some(0), move |from| {
                let worker = worker.clone();
                async move {
                    let (reply, answer) = oneshot::channel();
                    let from = from?;
                    // A worker that has ended has no sessions.
                    worker.send(SessionQuery { from, reply }).ok()?;
                    answer.await.ok()
                }
            })
        };
        stream::iter(self.workers()).flat_map(of_worker).boxed()
    }
}
