//! The event loop of one worker: a thread with a current-thread runtime, which accepts, serves and drains.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use peername_relay::limit_pipes;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::acceptor::{Acceptor, Dispatched};
use super::balance::{Inbox, WorkerBalancer};
use super::command::WorkerCommand;
use super::connection_limit::ConnectionLimit;
use super::phases::{Phases, TaskFuture, WorkerTask};
use super::serve::Serve;
use crate::listeners::Listener;

/// Everything that one worker's thread is started with.
pub(crate) struct Worker<S: Serve> {
    pub(crate) service: Arc<S>,
    pub(crate) limit: ConnectionLimit,
    /// Counts closed listening sockets.
    pub(crate) closed: Arc<AtomicUsize>,
    pub(crate) phases: Phases,
    pub(crate) commands: mpsc::UnboundedReceiver<WorkerCommand>,
    pub(crate) balancer: WorkerBalancer<Dispatched<S>>,
    pub(crate) inbox: Inbox<Dispatched<S>>,
    pub(crate) max_pipes: usize,
}

impl<S: Serve> Worker<S> {
    /// Runs on the calling thread until all connections are drained and all tasks have ended, the control side ends the worker,
    /// or a task fails.
    pub(crate) fn run(
        self,
        runtime: Runtime,
        listeners: Vec<Listener>,
        tasks: Vec<WorkerTask>,
    ) -> io::Result<()> {
        limit_pipes(self.max_pipes);
        runtime.spawn(keep_a_timer_near());
        runtime.block_on(self.serve(listeners, tasks))
    }

    async fn serve(self, listeners: Vec<Listener>, tasks: Vec<WorkerTask>) -> io::Result<()> {
        let mut acceptor = Acceptor::new(self.service, self.limit, self.balancer, self.closed)?;
        acceptor.add(listeners)?;
        let mut event_loop = EventLoop {
            acceptor,
            inbox: self.inbox,
            tasks: FuturesUnordered::new(),
            commands: self.commands,
            phases: self.phases,
        };
        for task in tasks {
            event_loop.spawn(task);
        }
        event_loop.accept_until_draining().await?;
        event_loop.drain().await
    }
}

/// The state of a worker that runs.
struct EventLoop<S: Serve> {
    acceptor: Acceptor<S>,
    inbox: Inbox<Dispatched<S>>,
    tasks: FuturesUnordered<TaskFuture>,
    commands: mpsc::UnboundedReceiver<WorkerCommand>,
    phases: Phases,
}

impl<S: Serve> EventLoop<S> {
    async fn accept_until_draining(&mut self) -> io::Result<()> {
        let mut draining = self.phases.clone();
        loop {
            tokio::select! {
                () = draining.wait_draining() => return Ok(()),
                accepted = self.acceptor.accept() => accepted?,
                Some(handoff) = self.inbox.handoffs.recv() => self.acceptor.serve(handoff),
                Some(ended) = self.tasks.next(), if !self.tasks.is_empty() => ended?,
                Some(command) = self.commands.recv() => self.execute(command)?,
            }
        }
    }

    fn spawn(&self, task: WorkerTask) {
        self.tasks.push(task(self.phases.clone()));
    }

    /// Executes a command. A reply that can't be sent is ignored: its caller has stopped waiting.
    fn execute(&mut self, command: WorkerCommand) -> io::Result<()> {
        match command {
            WorkerCommand::Open(listeners) => self.acceptor.add(listeners)?,
            WorkerCommand::Spawn(task) => self.spawn(task),
            WorkerCommand::Call(call) => call(),
            WorkerCommand::Share(reply) => drop(reply.send(self.acceptor.share())),
            WorkerCommand::LeaveBacklogs(ids, reply) => {
                self.acceptor.leave_backlogs(&ids);
                let _ = reply.send(());
            }
            WorkerCommand::Close(ids, reply) => {
                for &id in ids.iter() {
                    self.acceptor.close(id);
                }
                let _ = reply.send(());
            }
        }
        Ok(())
    }

    /// Serves the accept backlogs, then waits until the open connections and the tasks have ended, or the worker is ended.
    async fn drain(self) -> io::Result<()> {
        let Self {
            mut acceptor,
            inbox:
                Inbox {
                    mut handoffs,
                    mut all_closed,
                },
            mut tasks,
            mut commands,
            mut phases,
        } = self;
        acceptor.close_all();
        // From now on other workers keep the connections that they accept. These were handed off before.
        handoffs.close();
        while let Some(handoff) = handoffs.recv().await {
            acceptor.serve(handoff);
        }
        let drain_connections = async {
            while acceptor.is_draining() {
                acceptor.accept().await?;
            }
            drop(acceptor);
            // Every connection holds a sender; when the last one is dropped, the receiver wakes.
            all_closed.recv().await;
            Ok(())
        };
        let drain_or_end = async {
            tokio::select! {
                drained = drain_connections => drained,
                () = phases.wait_end() => Ok(()),
            }
        };
        let finish_tasks = async {
            while let Some(ended) = tasks.next().await {
                ended?;
            }
            Ok(())
        };
        // Other commands are dropped together with their reply channels, so their callers don't wait.
        let run_calls = async {
            while let Some(command) = commands.recv().await {
                if let WorkerCommand::Call(call) = command {
                    call();
                }
            }
        };
        tokio::select! {
            ended = async { tokio::try_join!(drain_or_end, finish_tasks) } => ended.map(drop),
            () = async { run_calls.await; std::future::pending().await } => Ok(()),
        }
    }
}

/// Keeps a timer due soon. tokio wakes itself through its event descriptor for a timer that is due before all others. That
/// costs a write(2) and an iteration of the loop, for nothing, since the loop polls its timers before it sleeps.
async fn keep_a_timer_near() {
    loop {
        sleep(TICK).await;
    }
}

/// Shorter than the timeouts that connections set and usually cancel.
const TICK: Duration = Duration::from_secs(1);
