//! The open sessions of all workers, for listings and for revocation.
//!
//! A session belongs to its worker, so the control side asks each worker for a batch at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use peername_observe::connections::{ConnectionSnapshot, ConnectionSource, SnapshotStream};
use tokio::sync::{mpsc, oneshot};

/// The workers to ask. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct OpenSessions(Arc<Mutex<Vec<ListedWorker>>>);

/// A worker's task: of each group of listeners, each worker has one.
#[derive(Clone, Debug)]
struct ListedWorker {
    /// The index of the worker.
    worker: usize,
    commands: mpsc::UnboundedSender<SessionCommand>,
    sessions: Arc<SessionGauge>,
}

/// The number of sessions of a task, which alone stores it.
#[derive(Debug, Default)]
pub(crate) struct SessionGauge(AtomicU64);

impl SessionGauge {
    pub(crate) fn set(&self, sessions: usize) {
        self.0.store(sessions as u64, Relaxed);
    }
}

/// A command about a batch of sessions. `from` is the slot that the batch begins at.
#[derive(Debug)]
pub(crate) enum SessionCommand {
    /// Copy them.
    List {
        from: usize,
        reply: oneshot::Sender<SessionBatch>,
    },
    /// Close those of denied clients.
    Revoke {
        from: usize,
        reply: oneshot::Sender<RevokedBatch>,
    },
}

/// Snapshots, and the slot to go on from; `None` at the end.
pub(crate) type SessionBatch = (Vec<ConnectionSnapshot>, Option<usize>);
/// How many sessions were closed, and the slot to go on from; `None` at the end.
pub(crate) type RevokedBatch = (usize, Option<usize>);

impl OpenSessions {
    /// Adds a worker, which executes commands until it drops the receiver.
    pub(crate) fn add_worker(
        &self,
        worker: usize,
        sessions: Arc<SessionGauge>,
    ) -> mpsc::UnboundedReceiver<SessionCommand> {
        let (commands, receiver) = mpsc::unbounded_channel();
        let mut workers = self.0.lock();
        workers.retain(|one| !one.commands.is_closed());
        workers.push(ListedWorker {
            worker,
            commands,
            sessions,
        });
        receiver
    }

    /// The number of open sessions of each worker.
    pub fn by_worker(&self) -> Vec<u64> {
        let mut sums = Vec::new();
        for one in self.workers() {
            if sums.len() <= one.worker {
                sums.resize(one.worker + 1, 0);
            }
            if let (Some(sum), false) = (sums.get_mut(one.worker), one.commands.is_closed()) {
                *sum += one.sessions.0.load(Relaxed);
            }
        }
        sums
    }

    /// Closes the sessions of clients that the current lists deny, and returns how many.
    pub async fn revoke(&self) -> usize {
        let mut closed = 0;
        for listed in self.workers() {
            let mut next = Some(0);
            while let Some(from) = next {
                let (reply, answer) = oneshot::channel();
                // A worker that has ended has no sessions.
                let _ = listed.commands.send(SessionCommand::Revoke { from, reply });
                let (count, following) = answer.await.unwrap_or_default();
                closed += count;
                next = following;
            }
        }
        closed
    }

    fn workers(&self) -> Vec<ListedWorker> {
        let workers = self.0.lock();
        workers.clone()
    }
}

impl ConnectionSource for OpenSessions {
    fn snapshots(&self) -> SnapshotStream {
        let of_worker = |listed: ListedWorker| {
            stream::unfold(Some(0), move |from| {
                let worker = listed.commands.clone();
                async move {
                    let (reply, answer) = oneshot::channel();
                    let from = from?;
                    // A worker that has ended has no sessions.
                    worker.send(SessionCommand::List { from, reply }).ok()?;
                    answer.await.ok()
                }
            })
        };
        stream::iter(self.workers()).flat_map(of_worker).boxed()
    }
}
