//! The phases of a worker (serve, announce the drain, drain, end), and the tasks that follow them.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// A task that runs on a worker's thread, besides the connections. The task ends by itself or when its [`Phases`] tell it to.
/// An error of the task ends the worker.
pub type WorkerTask = Box<dyn FnOnce(Phases) -> TaskFuture + Send>;
pub(super) type TaskFuture = Pin<Box<dyn Future<Output = io::Result<()>>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serve,
    /// As [`Phase::Serve`], but clients should be sent elsewhere.
    AnnounceDrain,
    Drain,
    End,
}

/// Watches the phase of all workers, and a [`DrainGuard`] if the task has one.
#[derive(Clone, Debug)]
pub struct Phases {
    workers: watch::Receiver<Phase>,
    /// Set for a task that can drain or end before its worker does.
    guard: Option<watch::Receiver<Phase>>,
}

/// Makes its tasks drain when it is dropped, or before ([`with_drain_guard`]).
#[derive(Debug)]
pub struct DrainGuard(watch::Sender<Phase>);

impl DrainGuard {
    /// Drains the tasks, ends them after `limit`, and returns once they have ended.
    pub async fn drain(self, limit: Duration) {
        self.0.send_replace(Phase::Drain);
        if timeout(limit, self.0.closed()).await.is_err() {
            self.end().await;
        }
    }

    /// Ends the tasks, and returns once they have ended.
    pub async fn end(self) {
        self.0.send_replace(Phase::End);
        self.0.closed().await;
    }
}

impl Phases {
    pub(crate) fn new(workers: watch::Receiver<Phase>) -> Self {
        Self {
            workers,
            guard: None,
        }
    }

    /// Whether the task drains: nothing new may begin.
    pub fn is_draining(&self) -> bool {
        let is_guard_gone = |guard: &watch::Receiver<Phase>| {
            guard.has_changed().is_err() || *guard.borrow() >= Phase::Drain
        };
        self.is_process_draining() || self.guard.as_ref().is_some_and(is_guard_gone)
    }

    /// Whether the task drains because the process does, not only because of its [`DrainGuard`].
    pub fn is_process_draining(&self) -> bool {
        *self.workers.borrow() >= Phase::Drain
    }

    /// Whether the process will drain soon, or drains: clients should be sent elsewhere.
    pub fn is_drain_announced(&self) -> bool {
        *self.workers.borrow() >= Phase::AnnounceDrain
    }

    /// Waits until the task must drain: nothing new may begin. Cancel-safe.
    pub async fn wait_draining(&mut self) {
        let workers = self.workers.wait_for(|phase| *phase >= Phase::Drain);
        match &mut self.guard {
            None => drop(workers.await),
            // `wait_for` returns an error once the guard is dropped.
            Some(guard) => tokio::select! {
                _ = workers => {}
                _ = guard.wait_for(|phase| *phase >= Phase::Drain) => {}
            },
        }
    }

    /// Waits until everything must end. Cancel-safe.
    pub async fn wait_end(&mut self) {
        let workers = self.workers.wait_for(|phase| *phase == Phase::End);
        match &mut self.guard {
            None => drop(workers.await),
            // A guard that is dropped does not end its tasks.
            Some(guard) => tokio::select! {
                _ = workers => {}
                Ok(_) = guard.wait_for(|phase| *phase == Phase::End) => {}
            },
        }
    }
}

/// Wraps tasks so that they drain when the guard is dropped, or when their workers drain.
pub fn with_drain_guard(tasks: Vec<WorkerTask>) -> (Vec<WorkerTask>, DrainGuard) {
    let (sender, receiver) = watch::channel(Phase::Serve);
    let with_guard = |task: WorkerTask| -> WorkerTask {
        let guard = Some(receiver.clone());
        Box::new(move |phases| task(Phases { guard, ..phases }))
    };
    (
        tasks.into_iter().map(with_guard).collect(),
        DrainGuard(sender),
    )
}
