//! The workers: one thread each, with a listening socket of its own on every address.
//!
//! Once a worker serves a connection, the connection never moves to another thread, takes no lock and wakes no other worker.
//! The kernel spreads connections over the workers' sockets (SO_REUSEPORT), and `balance.rs` evens out the differences.

pub mod connections;
pub mod liveness;
pub mod load;
pub mod phases;
pub mod services;

mod acceptor;
mod balance;
mod command;
mod connection_limit;
mod draining_listener;
mod event_loop;
mod limit_handle;
mod serve;
mod waiting_threads;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;

use peername_sys::NameCall;
use tokio::sync::{mpsc, oneshot, watch};

use self::balance::balancers;
use self::command::{WorkerCalls, WorkerCommand};
use self::connection_limit::ConnectionLimit;
use self::connections::OpenConnections;
use self::event_loop::Worker;
pub use self::limit_handle::LimitHandle;
use self::liveness::Liveness;
use self::load::WorkerLoad;
pub use self::phases::WorkerTask;
use self::phases::{Phase, Phases};
pub use self::serve::{Incoming, Serve};
pub use self::waiting_threads::WorkerThreads;
use crate::access::max_connections::MaxConnections;
use crate::listeners::{ListenerId, Listeners};

/// The numbers of connections and pipes that the descriptor limit allows.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// Connections open at once; further ones wait in the accept backlog.
    pub connections: MaxConnections,
    /// Pipes for splice(2) per worker; a worker that has used them up copies.
    pub pipes_per_worker: usize,
}

/// Running workers.
pub struct Workers {
    phase: watch::Sender<Phase>,
    /// By the index of the worker; `None` once [`Workers::next_exit`] has returned its exit.
    threads: Vec<Option<JoinHandle<io::Result<()>>>>,
    /// The indices of the workers that have exited.
    exits: mpsc::UnboundedReceiver<usize>,
    commands: Vec<mpsc::UnboundedSender<WorkerCommand>>,
    loads: Vec<Arc<WorkerLoad>>,
    limit: LimitHandle,
    /// Listening sockets closed since their descriptors were last released.
    closed: Arc<AtomicUsize>,
}

/// Starts a worker for each set of sockets, each on one of the threads, of which there are as many. The tasks of each list are
/// distributed over the workers, from the first one on.
pub fn start<S: Serve>(
    threads: WorkerThreads,
    listeners: Listeners,
    tasks: Vec<Vec<WorkerTask>>,
    service: &Arc<S>,
    capacity: Capacity,
) -> Workers {
    let (phase, _) = watch::channel(Phase::Serve);
    let (exit, exits) = mpsc::unbounded_channel();
    let mut workers = Workers {
        phase,
        threads: Vec::new(),
        exits,
        commands: Vec::new(),
        loads: Vec::new(),
        limit: LimitHandle::new(capacity.connections),
        closed: Arc::default(),
    };
    let per_worker = listeners.into_per_worker();
    let count = per_worker.len();
    let mut tasks_per_worker = distribute(tasks, count).into_iter();
    let each = per_worker.into_iter().zip(balancers(count));
    let first_id = connections::first_id();
    for (thread, (listeners, (balancer, inbox))) in threads.0.into_iter().zip(each) {
        let tasks = tasks_per_worker.next().unwrap_or_default();
        let (commands, received) = mpsc::unbounded_channel();
        let load = Arc::clone(&balancer.load);
        workers.loads.push(Arc::clone(&load));
        let worker = Worker {
            service: Arc::clone(service),
            limit: ConnectionLimit::new(Arc::clone(&workers.limit.permits)),
            closed: Arc::clone(&workers.closed),
            phases: Phases::new(workers.phase.subscribe()),
            commands: received,
            balancer,
            inbox,
            max_pipes: capacity.pipes_per_worker,
        };
        let index = workers.threads.len();
        let exit = exit.clone();
        let thread = thread.start(Box::new(move |runtime| {
            let _notifier = ExitNotifier { index, exit };
            connections::begin_table(first_id, index, count, load);
            worker.run(runtime, listeners, tasks)
        }));
        workers.threads.push(Some(thread));
        workers.commands.push(commands);
    }
    workers
}

impl Workers {
    /// A handle to check that no worker hangs.
    pub fn liveness(&self) -> Liveness {
        Liveness(self.calls())
    }

    /// A handle to the open connections.
    pub fn connections(&self) -> OpenConnections {
        OpenConnections(self.calls())
    }

    /// The number of connections that are open now.
    pub fn open_connections(&self) -> u64 {
        self.loads.iter().map(|load| load.connections()).sum()
    }

    /// The load of each worker.
    pub fn loads(&self) -> Vec<Arc<WorkerLoad>> {
        self.loads.clone()
    }

    fn calls(&self) -> WorkerCalls {
        WorkerCalls(self.commands.clone())
    }

    /// A handle to watch the phase of the workers.
    pub fn phases(&self) -> Phases {
        Phases::new(self.phase.subscribe())
    }

    /// A handle to the limit on open connections.
    pub fn limit(&self) -> LimitHandle {
        self.limit.clone()
    }

    /// The number of descriptors that are left for further connections.
    pub fn free_descriptors(&self) -> usize {
        2 * self.limit.permits.available_permits()
    }

    /// Accepts from these listeners too, with fewer descriptors left for connections.
    pub fn open(&mut self, listeners: Listeners) {
        let per_worker = listeners.into_per_worker();
        self.limit
            .reserve_descriptors(per_worker.iter().map(Vec::len).sum());
        for (worker, listeners) in self.commands.iter().zip(per_worker) {
            // A worker that has exited ends the process.
            let _ = worker.send(WorkerCommand::Open(listeners));
        }
    }

    /// Distributes more tasks over the workers, from the first worker on.
    pub fn spawn(&self, tasks: Vec<WorkerTask>) {
        for (worker, task) in self.commands.iter().cycle().zip(tasks) {
            let _ = worker.send(WorkerCommand::Spawn(task));
        }
    }

    /// Closes these listeners. Connections in their accept backlog are served first, and open connections go on.
    /// Returns once every worker has closed them, except listeners whose backlog waits for a connection permit.
    pub async fn close(&mut self, listeners: Vec<ListenerId>) {
        let listeners: Arc<[ListenerId]> = listeners.into();
        let mut answers = Vec::new();
        for worker in &self.commands {
            let (reply, answer) = oneshot::channel();
            let _ = worker.send(WorkerCommand::Close(Arc::clone(&listeners), reply));
            answers.push(answer);
        }
        for answer in answers {
            let _ = answer.await;
        }
        // Listeners with a backlog are closed later; their descriptors are released by the next call.
        let closed = self.closed.swap(0, Relaxed);
        self.limit.release_descriptors(closed);
    }

    /// Returns every listening socket, for a process that takes over. The sockets are in the order of the workers. They are not
    /// duplicated, because connections may have all descriptors.
    pub async fn share_listeners(
        &self,
    ) -> peername_sys::Result<Vec<(ListenerId, Arc<TcpListener>)>> {
        let mut all = Vec::new();
        for worker in &self.commands {
            let (reply, answer) = oneshot::channel();
            let _ = worker.send(WorkerCommand::Share(reply));
            let shared = answer
                .await
                .map_err(io::Error::other)
                .call("a worker's listening sockets")?;
            all.extend(shared);
        }
        Ok(all)
    }

    /// Makes later calls of [`Workers::close`] leave the accept backlogs of these listeners to the process that has taken over.
    pub async fn leave_backlogs(&self, listeners: Vec<ListenerId>) {
        let listeners: Arc<[ListenerId]> = listeners.into();
        for worker in &self.commands {
            let (reply, answer) = oneshot::channel();
            let _ = worker.send(WorkerCommand::LeaveBacklogs(Arc::clone(&listeners), reply));
            let _ = answer.await;
        }
    }

    /// Serves as before, but is reported as draining, so that clients are sent elsewhere ([`Phases::is_drain_announced`]).
    pub fn announce_drain(&self) {
        self.phase.send_replace(Phase::AnnounceDrain);
    }

    /// Accepts no more; open connections go on.
    pub fn drain(&self) {
        self.phase.send_replace(Phase::Drain);
    }

    /// Ends all open connections and tasks.
    pub fn end(&self) {
        self.phase.send_replace(Phase::End);
    }

    /// Waits until a worker exits, and returns its result; `None` once all have exited. Cancel-safe.
    pub async fn next_exit(&mut self) -> Option<io::Result<()>> {
        let index = self.exits.recv().await?;
        let thread = self.threads.get_mut(index)?.take()?;
        // The thread has nothing left to do but to return.
        let exit = thread.join();
        Some(exit.unwrap_or_else(|_| Err(io::Error::other("it panicked"))))
    }

    /// Waits until every worker has exited, which is soon after [`Workers::end`].
    pub fn join(self) {
        for thread in self.threads.into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

/// Distributes the tasks of each list over the workers, from the first worker on.
fn distribute(tasks: Vec<Vec<WorkerTask>>, workers: usize) -> Vec<Vec<WorkerTask>> {
    let mut per_worker: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
    for (number, task) in tasks
        .into_iter()
        .flat_map(|list| list.into_iter().enumerate())
    {
        if let Some(worker) = per_worker.get_mut(number % workers.max(1)) {
            worker.push(task);
        }
    }
    per_worker
}

/// Reports the exit of a worker's thread when it is dropped, which a panic does, too.
struct ExitNotifier {
    index: usize,
    exit: mpsc::UnboundedSender<usize>,
}

impl Drop for ExitNotifier {
    fn drop(&mut self) {
        // The receiver is gone once the control side has ended all workers.
        let _ = self.exit.send(self.index);
    }
}
