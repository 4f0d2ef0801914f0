//! The commands that the control side sends to a running worker.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::phases::WorkerTask;
use crate::listeners::{Listener, ListenerId};

/// A command for a running worker.
pub(crate) enum WorkerCommand {
    /// Accept from these listeners, too.
    Open(Vec<Listener>),
    /// Run this task, too.
    Spawn(WorkerTask),
    /// Call this function, which is short.
    Call(Box<dyn FnOnce() + Send>),
    /// Close these listeners, then answer.
    Close(Arc<[ListenerId]>, oneshot::Sender<()>),
}
