//! The commands that the control side sends to a running worker.

use std::net::TcpListener;
use std::sync::Arc;

use tokio::sync::oneshot;

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
