//! The open sessions of all workers, for listings and for revocation.
//!
//! A session belongs to its worker, so the control side sends commands to each worker. A command is about a batch of sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use peername_observe::connections::{ConnectionSnapshot, ConnectionSource, SnapshotStream};
use tokio::sync::{mpsc, oneshot};

/// Lists and revokes the sessions of all workers. Clones share the workers.
#[derive(Clone, Debug, Default)]
pub struct OpenSessions(Arc<Mutex<Vec<ListedWorker>>>);

/// A task of a worker. A worker has one for each group of listeners.
#[derive(Clone, Debug)]
struct ListedWorker {
    /// The index of the worker.
    worker: usize,
    commands: mpsc::UnboundedSender<SessionCommand>,
    sessions: Arc<SessionGauge>,
}

/// The number of open sessions of a task. Only the task sets it.
#[derive(Debug, Default)]
pub(crate) struct SessionGauge(AtomicU64);

impl SessionGauge {
    pub(crate) fn set(&self, sessions: usize) {
        self.0.store(sessions as u64, Relaxed);
    }
}

/// A command about a batch of sessions. `from`: the first slot of the batch.
#[derive(Debug)]
pub(crate) enum SessionCommand {
    /// Copies the sessions.
    List {
        from: usize,
        reply: oneshot::Sender<SessionBatch>,
    },
    /// Closes the sessions of denied clients.
    Revoke {
        from: usize,
        reply: oneshot::Sender<RevokedBatch>,
    },
}

/// Snapshots, and the first slot of the next batch; `None` at the end.
pub(crate) type SessionBatch = (Vec<ConnectionSnapshot>, Option<usize>);
/// The number of closed sessions, and the first slot of the next batch; `None` at the end.
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
        workers.retain(|listed| !listed.commands.is_closed());
        workers.push(ListedWorker {
            worker,
            commands,
            sessions,
        });
        receiver
    }

    /// The number of open sessions of each worker.
    pub fn by_worker(&self) -> Vec<u64> {
        let mut sums: Vec<u64> = Vec::new();
        for listed in self.workers() {
            if sums.len() <= listed.worker {
                sums.resize(listed.worker + 1, 0);
            }
            if !listed.commands.is_closed() {
                sums[listed.worker] += listed.sessions.0.load(Relaxed);
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
        self.0.lock().clone()
    }
}

impl ConnectionSource for OpenSessions {
    fn snapshots(&self) -> SnapshotStream {
        stream::iter(self.workers())
            .flat_map(|listed| list_sessions(listed.commands))
            .boxed()
    }
}

/// The snapshots of one worker's sessions, batch by batch.
fn list_sessions(
    commands: mpsc::UnboundedSender<SessionCommand>,
) -> impl Stream<Item = Vec<ConnectionSnapshot>> + Send {
    stream::unfold(Some(0), move |from| {
        let commands = commands.clone();
        async move {
            let (reply, answer) = oneshot::channel();
            let from = from?;
            // A worker that has ended has no sessions.
            commands.send(SessionCommand::List { from, reply }).ok()?;
            answer.await.ok()
        }
    })
}
