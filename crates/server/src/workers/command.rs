//! The commands that the control side sends to a running worker.

use std::net::TcpListener;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::phases::WorkerTask;
use crate::listeners::{Listener, ListenerId};

/// Duplicates of a worker's listening sockets, or why there are none.
pub(crate) type SharedListeners = peername_sys::Result<Vec<(ListenerId, TcpListener)>>;

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
    /// Answer with a duplicate of each listening socket.
    Share(oneshot::Sender<SharedListeners>),
    /// Leave the accept backlogs of these listeners to another process when they are closed, and answer.
    LeaveBacklogs(Arc<[ListenerId]>, oneshot::Sender<()>),
}
