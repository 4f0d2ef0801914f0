//! The phases of a worker (serve, drain, end), and the tasks that follow them.

use std::io;
use std::pin::Pin;

use tokio::sync::watch;

/// A task of a worker beside its connections, on the same thread: it begins there, and ends by itself or when its
/// [`Phases`] say so. Its error ends the worker.
pub type WorkerTask = Box<dyn FnOnce(Phases) -> TaskFuture + Send>;
type TaskFuture = Pin<Box<dyn Future<Output = io::Result<()>>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Serve,
    Drain,
    End,
}

/// Watches the phase of all workers, and a [`DrainGuard`] where there is one.
#[derive(Clone, Debug)]
pub struct Phases {
    workers: watch::Receiver<Phase>,
    /// Of a task that may drain before the workers do.
    guard: Option<watch::Receiver<()>>,
}

/// The tasks that were made with it drain when this is dropped.
#[derive(Debug)]
pub struct DrainGuard(#[expect(dead_code, reason = "its drop is the signal")] watch::Sender<()>);

impl Phases {
    pub(crate) fn new(workers: watch::Receiver<Phase>) -> Self {
        Self {
            workers,
            guard: None,
        }
    }

    /// Whether nothing new may begin any more.
    pub fn is_draining(&self) -> bool {
        let is_guard_dropped = |guard: &watch::Receiver<()>| guard.has_changed().is_err();
        *self.workers.borrow() != Phase::Serve || self.guard.as_ref().is_some_and(is_guard_dropped)
    }

    /// Waits until nothing new may begin. Cancel-safe.
    pub async fn wait_draining(&mut self) {
        let workers = self.workers.wait_for(|phase| *phase != Phase::Serve);
        match &mut self.guard {
            None => drop(workers.await),
            // The value never changes, so this is an error: the guard was dropped.
            Some(guard) => tokio::select! {
                _ = workers => {}
                _ = guard.changed() => {}
            },
        }
    }

    /// Waits until everything must end. Cancel-safe.
    pub async fn wait_end(&mut self) {
        let _ = self.workers.wait_for(|phase| *phase == Phase::End).await;
    }
}

/// Makes tasks that can be drained while their workers go on: when the guard is dropped.
pub fn with_drain_guard(tasks: Vec<WorkerTask>) -> (Vec<WorkerTask>, DrainGuard) {
    let (sender, receiver) = watch::channel(());
    let with_guard = |task: WorkerTask| -> WorkerTask {
        let guard = Some(receiver.clone());
        Box::new(move |phases| task(Phases { guard, ..phases }))
    };
    (
        tasks.into_iter().map(with_guard).collect(),
        DrainGuard(sender),
    )
}
