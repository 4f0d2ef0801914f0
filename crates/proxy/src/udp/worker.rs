//! The UDP worker: an event loop that receives batches of datagrams and sends batches on.
//!
//! All sockets, of listeners and of sessions, are in an epoll instance of the worker, which the runtime polls. So one wakeup
//! returns every ready socket, a session takes no task and no registration in the runtime, and a round takes few system
//! calls however many sessions it serves. After some rounds the worker yields to its TCP connections.

mod batch_item;
pub(super) mod batch_sender;
mod handover;
mod replies;
mod requests;

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batch_item::{BATCH_SIZE, BatchItem};
use batch_sender::BatchSender;
use peername_kernel::data_path::DataPath;
use peername_sys::event::async_epoll::AsyncEpoll;
use peername_sys::udp::RecvBatch;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use super::config::UdpConfig;
use super::handover::{HandoverCommand, UdpWorkers};
use super::listeners::UdpListeners;
use super::listing::{OpenSessions, SessionCommand, SessionGauge};
use super::lru_table::{EntryId, TableLimits};
use super::reply_sockets::ReplySockets;
use super::session::OverflowCounter;
use super::session::role::Role;
use super::session::table::{DRAIN_QUIET, SessionTable};
use crate::telemetry::counters::Counters;
use peername_server::addr::LocalAddr;
use peername_server::listeners::ListenerId;
use peername_server::workers::WorkerTask;
use peername_server::workers::phases::Phases;

/// The state that all workers share.
#[derive(Clone, Debug)]
pub(crate) struct SharedState {
    pub(crate) counters: Arc<Counters>,
    /// The data path in the kernel, if it is used.
    pub(crate) kernel: Option<Arc<DataPath>>,
    pub(crate) sessions: OpenSessions,
}

/// Makes the tasks of UDP workers, one for each worker that has sockets, and the handles of these workers.
pub(crate) fn worker_tasks<R: Role + Send + 'static>(
    mut sockets: UdpListeners,
    config: &UdpConfig,
    shared: &SharedState,
    role: impl Fn(TableLimits, Arc<[(ListenerId, LocalAddr)]>) -> R,
) -> (Vec<WorkerTask>, UdpWorkers) {
    let limits = config.worker_limits(sockets.workers());
    let listeners: Arc<[_]> = sockets.listeners.clone().into();
    let mut restored = std::mem::take(&mut sockets.restored).into_iter();
    let mut tasks = Vec::new();
    let mut handover_senders = Vec::new();
    for (index, sockets) in sockets.by_worker.into_iter().enumerate() {
        let gauge = Arc::<SessionGauge>::default();
        let session_commands = shared.sessions.add_worker(index, Arc::clone(&gauge));
        let (handover_sender, handover_commands) = mpsc::unbounded_channel();
        let role = role(limits, Arc::clone(&listeners));
        let (counters, kernel) = (Arc::clone(&shared.counters), shared.kernel.clone());
        let restored = restored.next().unwrap_or_default();
        let task: WorkerTask = Box::new(move |mut phases| {
            Box::pin(async move {
                let poller = AsyncEpoll::new().map_err(io::Error::other)?;
                let mut worker =
                    Worker::new(role, limits, (counters, gauge), kernel, sockets, &poller)?;
                worker.restore(restored, &poller);
                let ended = worker
                    .run(&poller, &mut phases, session_commands, handover_commands)
                    .await;
                // Dropped before `phases`, whose drop tells a waiting reload that the sockets are closed.
                drop(worker);
                ended
            })
        });
        tasks.push(task);
        handover_senders.push(handover_sender);
    }
    (tasks, UdpWorkers(handover_senders))
}

/// The state of one worker.
struct Worker<R> {
    sessions: SessionTable<R>,
    listeners: Vec<Listener>,
    inbox: RecvBatch,
    sender: BatchSender,
    reply_sockets: ReplySockets,
    /// Tokens of ready sockets, kept for their allocation.
    ready: Vec<u64>,
    /// The number of buffers of the inbox that hold replies not yet sent.
    reply_buffers_used: usize,
    /// The datagrams of the batch that are to be sent.
    items: Vec<BatchItem>,
    /// When a datagram of a session was last received.
    last_activity: Instant,
}

struct Listener {
    socket: Arc<UdpSocket>,
    port: u16,
    overflow: OverflowCounter,
}

impl<R: Role> Worker<R> {
    fn new(
        role: R,
        limits: TableLimits,
        (counters, gauge): (Arc<Counters>, Arc<SessionGauge>),
        kernel: Option<Arc<DataPath>>,
        sockets: Vec<UdpSocket>,
        poller: &AsyncEpoll,
    ) -> io::Result<Self> {
        let mut addrs = Vec::new();
        let mut listeners = Vec::new();
        for (number, socket) in sockets.into_iter().enumerate() {
            let addr = socket.local_addr()?;
            addrs.push(LocalAddr(addr));
            poller
                .add(&socket, token_of_listener(number))
                .map_err(io::Error::other)?;
            listeners.push(Listener {
                socket: Arc::new(socket),
                port: addr.port(),
                overflow: OverflowCounter::default(),
            });
        }
        Ok(Self {
            reply_sockets: ReplySockets::new(limits.idle),
            sessions: SessionTable::new(role, limits, (counters, gauge), addrs, kernel),
            listeners,
            inbox: RecvBatch::new(BATCH_SIZE),
            sender: BatchSender::new(),
            ready: Vec::new(),
            reply_buffers_used: 0,
            items: Vec::new(),
            last_activity: Instant::now(),
        })
    }

    /// Serves until the process stops.
    ///
    /// While draining, the worker ends once no datagram has been received for [`DRAIN_QUIET`], or its last session has ended.
    /// Before sessions expire, the sockets are drained once, because the process may have been suspended; only once,
    /// because a flood would put off expiry for ever.
    ///
    /// # Errors
    ///
    /// The sockets were destroyed, or epoll fails.
    async fn run(
        &mut self,
        poller: &AsyncEpoll,
        phases: &mut Phases,
        mut session_commands: UnboundedReceiver<SessionCommand>,
        mut handover_commands: UnboundedReceiver<HandoverCommand>,
    ) -> io::Result<()> {
        let mut draining = phases.clone();
        let mut tick = interval(EXPIRY_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !(self.sessions.is_draining() && self.sessions.table.len() == 0) {
            let quiet_at = self.last_activity + DRAIN_QUIET;
            tokio::select! {
                // The end is polled before draining, because draining refuses new clients.
                biased;
                () = phases.wait_end() => {
                    // Serves the datagrams that were received before.
                    self.poll_rounds(poller)?;
                    break;
                }
                () = draining.wait_draining(), if !self.sessions.is_draining() => {
                    // Serves the datagrams that were received before the signal.
                    self.poll_rounds(poller)?;
                    self.last_activity = Instant::now();
                    let is_removed = !draining.is_process_draining();
                    self.sessions.begin_draining(self.last_activity, is_removed);
                }
                () = sleep_until(quiet_at.into()), if self.sessions.is_draining() => {
                    let now = Instant::now();
                    self.poll_rounds(poller)?;
                    if now.saturating_duration_since(self.last_activity) >= DRAIN_QUIET {
                        break;
                    }
                }
                Some(command) = handover_commands.recv() => match command {
                    HandoverCommand::Share(reply) => drop(reply.send(self.share_sockets())),
                    HandoverCommand::Freeze { sink, sent, verdict } => {
                        let _ = sent.send(self.freeze(sink));
                        if verdict.await.is_ok() {
                            self.sessions.hand_over();
                            return Ok(());
                        }
                    }
                },
                _ = tick.tick() => {
                    let now = Instant::now();
                    self.poll_rounds(poller)?;
                    self.tick(now);
                }
                Some(command) = session_commands.recv() => self.sessions.execute(command),
                ready = poller.readable() => {
                    let mut ready = ready?;
                    if self.poll_rounds(poller)? {
                        tokio::task::yield_now().await;
                    } else {
                        ready.clear_ready();
                    }
                }
            }
        }
        self.sessions.close_all();
        Ok(())
    }

    /// Expires sessions and reply sockets.
    fn tick(&mut self, now: Instant) {
        self.sessions.tick(now);
        self.reply_sockets.close_idle(now);
    }

    /// Serves ready sockets for some rounds. Returns whether any may still be ready.
    fn poll_rounds(&mut self, poller: &AsyncEpoll) -> io::Result<bool> {
        for _ in 0..ROUNDS_PER_TURN {
            if !self.poll_round(poller)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Serves each ready socket with one batch. Returns whether any may still be ready.
    fn poll_round(&mut self, poller: &AsyncEpoll) -> io::Result<bool> {
        let now = Instant::now();
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let mut more = poller.collect_ready(&mut ready).map_err(io::Error::other)?;
        for &token in &ready {
            more |= match listener_of_token(token) {
                Some(number) => self.receive_requests(number, now, poller)?,
                None => self.receive_replies(EntryId::from_u64(token), now),
            };
        }
        self.send_replies();
        self.sessions.report();
        self.ready = ready;
        Ok(more)
    }
}

fn token_of_listener(number: usize) -> u64 {
    u64::MAX - number as u64
}

/// The listener of a token; `None` for a session's. The low half of a session's token is its slot, and no session table has so
/// many slots that a token could equal a listener's.
fn listener_of_token(token: u64) -> Option<usize> {
    let number = u64::MAX - token;
    (number < MAX_LISTENERS).then_some(number as usize)
}

/// Rounds before the worker yields to its TCP connections.
const ROUNDS_PER_TURN: usize = 8;
/// The interval at which sessions are expired. Idle timeouts are late by this at most.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
/// Upper limit of listeners: more than a process has file descriptors (`fs.nr_open` is 2^20 by default).
const MAX_LISTENERS: u64 = 1 << 24;
