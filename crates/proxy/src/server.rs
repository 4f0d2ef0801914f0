//! The loops: one thread per worker, each with a listening socket of its own on every address.
//!
//! A worker is a current-thread runtime: what it serves never moves to another thread, takes no lock and wakes nobody. The
//! kernel spreads connections over the workers' sockets (SO_REUSEPORT), and `seat.rs` evens that out.

use std::io;
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use peername_relay::limit_pipes;
use tokio::runtime;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::sleep;

use crate::acceptor::{Accepted, Acceptor};
use crate::addr::{LocalAddr, PeerAddr};
use crate::listeners::{Listeners, Listening};
use crate::seat::{Inbox, Seat, seats};
use crate::service::ListenerId;
use crate::slots::Slots;

/// What a worker does beside its connections, on the same thread: begins there, and ends when the
/// [`Phases`] say so or by itself.
pub type Companion = Box<dyn FnOnce(Phases) -> Beside + Send>;
type Beside = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// What is done with a connection.
pub trait Serve: Send + Sync + 'static {
    /// What a connection is served by.
    type By: Clone + Send + 'static;

    /// Decides that for a connection of this listener, as it is accepted: a reload that closes the
    /// listener may be over before the connection has its turn.
    fn by(&self, listener: ListenerId) -> Self::By;

    /// Serves one connection to its end. An open connection is hardly more than this future: what it needs for a
    /// moment is better boxed.
    fn serve(
        self: Arc<Self>,
        connection: Incoming,
        by: Self::By,
    ) -> impl Future<Output = ()> + Send + 'static;
}

/// A connection as the kernel gave it.
#[derive(Debug)]
pub struct Incoming {
    /// The socket, which does not block, and which no runtime knows.
    pub stream: TcpStream,
    /// Who is really at the other end.
    pub peer: PeerAddr,
    /// The address listened on; where a TPROXY rule brought the connection, the one it was made to.
    pub listener: LocalAddr,
}

/// What the descriptors of this process are good for.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Connections open at once; further ones wait in the kernel's queue.
    pub connections: usize,
    /// Pipes for splicing; a worker that has no more copies.
    pub pipes_of_a_worker: usize,
}

/// Running loops.
pub struct Running {
    phase: watch::Sender<Phase>,
    /// By their numbers; those that are known to have ended are gone.
    workers: Vec<Option<JoinHandle<io::Result<()>>>>,
    /// The numbers of those that have ended.
    ended: mpsc::UnboundedReceiver<usize>,
    orders: Vec<mpsc::UnboundedSender<Order>>,
    slots: Arc<Semaphore>,
    /// Listening sockets that have been closed and not been given back.
    closed: Arc<AtomicUsize>,
    /// Descriptors taken from connections since the start; less than none where more were given back.
    aside: isize,
    /// Slots that are missing for it.
    withheld: isize,
}

/// What a running worker is told.
enum Order {
    /// Accept from these too.
    Open(Vec<Listening>),
    /// Do this too.
    Begin(Companion),
    /// Say that you are there.
    Answer(oneshot::Sender<()>),
    /// Close these, and say so.
    Close(Arc<[ListenerId]>, oneshot::Sender<()>),
}

/// Starts a worker for each set of sockets. Of each of `beside`, the first companion is the first
/// worker's, and so on.
///
/// # Errors
///
/// The system refuses a thread.
pub fn start<S: Serve>(
    listeners: Listeners,
    beside: Vec<Vec<Companion>>,
    service: &Arc<S>,
    capacity: Capacity,
) -> io::Result<Running> {
    let (phase, _) = watch::channel(Phase::Serve);
    let connections = capacity.connections.min(Semaphore::MAX_PERMITS);
    let slots = Arc::new(Semaphore::new(connections));
    let mut beside: Vec<_> = beside.into_iter().map(Vec::into_iter).collect();
    let (ending, ended) = mpsc::unbounded_channel();
    let mut running = Running {
        phase,
        workers: Vec::new(),
        ended,
        orders: Vec::new(),
        slots,
        closed: Arc::default(),
        aside: 0,
        withheld: 0,
    };
    let seats = seats(listeners.of_workers.len());
    for (listeners, (seat, inbox)) in listeners.of_workers.into_iter().zip(seats) {
        let companions = beside.iter_mut().filter_map(Iterator::next).collect();
        let (orders, received) = mpsc::unbounded_channel();
        let worker = Worker {
            service: Arc::clone(service),
            slots: Slots::new(Arc::clone(&running.slots)),
            closed: Arc::clone(&running.closed),
            phases: Phases {
                of_all: running.phase.subscribe(),
                held: None,
            },
            orders: received,
            seat,
            inbox,
            pipes: capacity.pipes_of_a_worker,
        };
        let number = running.workers.len();
        let ending = ending.clone();
        let thread = thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || {
                let _end = TellsItsEnd { number, ending };
                worker.run(listeners, companions)
            })?;
        running.workers.push(Some(thread));
        running.orders.push(orders);
    }
    Ok(running)
}

/// Tells whether workers still turn.
#[derive(Clone)]
pub struct Pulse(Vec<mpsc::UnboundedSender<Order>>);

impl Pulse {
    /// Returns once each worker has come round; never when one of them hangs.
    pub async fn beat(&self) {
        let ask = |worker: &mpsc::UnboundedSender<Order>| {
            let (here, heard) = oneshot::channel();
            let _ = worker.send(Order::Answer(here));
            heard
        };
        let answers: Vec<_> = self.0.iter().map(ask).collect();
        for answer in answers {
            // Dropped is answered: a worker that has ended is another's concern.
            let _ = answer.await;
        }
    }
}

impl Running {
    /// To be asked whether the workers still turn.
    pub fn pulse(&self) -> Pulse {
        Pulse(self.orders.clone())
    }

    /// How many descriptors are kept for connections that could still come.
    pub fn room(&self) -> usize {
        2 * self.slots.available_permits()
    }

    /// Takes descriptors from those that are kept for connections, two for each.
    pub fn set_aside(&mut self, descriptors: usize) {
        self.aside = self.aside.saturating_add_unsigned(descriptors);
        self.settle();
    }

    /// Gives back what was set aside, or open before the start.
    pub fn give_back(&mut self, descriptors: usize) {
        self.aside = self.aside.saturating_sub_unsigned(descriptors);
        self.settle();
    }

    /// Makes the slots what the descriptors allow. Rounding each step by itself would lose one a reload;
    /// what connections hold just now is taken the next time.
    fn settle(&mut self) {
        let wanted = self.aside.saturating_add(1).div_euclid(2);
        let change = wanted.saturating_sub(self.withheld);
        let slots = change.unsigned_abs();
        if change > 0 {
            let taken = self.slots.forget_permits(slots);
            self.withheld = self.withheld.saturating_add_unsigned(taken);
        } else {
            self.slots.add_permits(slots);
            self.withheld = wanted;
        }
    }

    /// Accepts from these too, with fewer descriptors left for connections.
    pub fn open(&mut self, listeners: Listeners) {
        self.set_aside(listeners.of_workers.iter().map(Vec::len).sum());
        for (worker, listeners) in self.orders.iter().zip(listeners.of_workers) {
            // A worker that has ended ends the process.
            let _ = worker.send(Order::Open(listeners));
        }
    }

    /// Gives the workers something more to do, the first companion to the first worker, and so on.
    pub fn begin(&self, companions: Vec<Companion>) {
        for (worker, companion) in self.orders.iter().zip(companions) {
            let _ = worker.send(Order::Begin(companion));
        }
    }

    /// Closes these listeners; returns once every worker has, but for those with somebody in their queue and no place for
    /// them. Who waits there is served first, and open connections go on.
    pub async fn close(&mut self, listeners: Vec<ListenerId>) {
        let listeners: Arc<[ListenerId]> = listeners.into();
        let tell = |worker: &mpsc::UnboundedSender<Order>| {
            let (closed, heard) = oneshot::channel();
            let _ = worker.send(Order::Close(Arc::clone(&listeners), closed));
            heard
        };
        let answers: Vec<_> = self.orders.iter().map(tell).collect();
        for answer in answers {
            let _ = answer.await;
        }
        // Those with a queue are closed later, and their descriptors are given back with the next one's.
        let closed = self.closed.swap(0, Relaxed);
        self.give_back(closed);
    }

    /// Accepts no more; open connections go on.
    pub fn drain(&self) {
        self.phase.send_replace(Phase::Drain);
    }

    /// Ends what is still open.
    pub fn end(&self) {
        self.phase.send_replace(Phase::End);
    }

    /// Waits until a loop ends, and returns how; `None` once all have. May be dropped while it waits.
    pub async fn next_end(&mut self) -> Option<io::Result<()>> {
        let number = self.ended.recv().await?;
        let worker = self.workers.get_mut(number)?.take()?;
        // It has nothing left to do but to go.
        let end = worker.join();
        Some(end.unwrap_or_else(|_| Err(io::Error::other("it panicked"))))
    }

    /// Waits until every loop has ended; after [`Running::end`] that is at once.
    pub fn join(self) {
        for worker in self.workers.into_iter().flatten() {
            let _ = worker.join();
        }
    }
}

/// On a worker's thread: when it is dropped, by a panic too, the thread's work is over.
struct TellsItsEnd {
    number: usize,
    ending: mpsc::UnboundedSender<usize>,
}

impl Drop for TellsItsEnd {
    fn drop(&mut self) {
        // Nobody wants to know when all are told to end.
        let _ = self.ending.send(self.number);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serve,
    Drain,
    End,
}

/// From serving to the end, as a worker sees it.
#[derive(Clone, Debug)]
pub struct Phases {
    of_all: watch::Receiver<Phase>,
    /// Of what may stop before the others do: its hold is gone.
    held: Option<watch::Receiver<()>>,
}

/// Companions stop when this is dropped.
#[derive(Debug)]
pub struct Hold(#[expect(dead_code, reason = "it only has to be there")] watch::Sender<()>);

/// Companions that can be told to begin nothing new while their workers go on.
pub fn held(companions: Vec<Companion>) -> (Vec<Companion>, Hold) {
    let (hold, held) = watch::channel(());
    let hold_on = |companion: Companion| -> Companion {
        let held = Some(held.clone());
        Box::new(move |phases| companion(Phases { held, ..phases }))
    };
    (companions.into_iter().map(hold_on).collect(), Hold(hold))
}

impl Phases {
    /// Waits until nothing new may begin.
    pub async fn draining(&mut self) {
        let of_all = self.of_all.wait_for(|phase| *phase != Phase::Serve);
        match &mut self.held {
            None => drop(of_all.await),
            // It never changes, so this is an error: nobody holds it any more.
            Some(held) => tokio::select! {
                _ = of_all => {}
                _ = held.changed() => {}
            },
        }
    }

    /// Waits until everything must end.
    pub async fn ended(&mut self) {
        let _ = self.of_all.wait_for(|phase| *phase == Phase::End).await;
    }
}

/// Something is always due soon. A timer before which nothing is due makes tokio call itself by an event, for nothing:
/// the loop looks at its timers before it sleeps. That was a write(2) for each timer, and a turn of the loop.
async fn tick() {
    loop {
        sleep(TICK).await;
    }
}

/// Shorter than any of a connection's limits that usually pass unused.
const TICK: Duration = Duration::from_secs(1);

struct Worker<S: Serve> {
    service: Arc<S>,
    slots: Slots,
    closed: Arc<AtomicUsize>,
    phases: Phases,
    orders: mpsc::UnboundedReceiver<Order>,
    seat: Seat<Accepted<S>>,
    inbox: Inbox<Accepted<S>>,
    pipes: usize,
}

impl<S: Serve> Worker<S> {
    fn run(self, listeners: Vec<Listening>, companions: Vec<Companion>) -> io::Result<()> {
        limit_pipes(self.pipes);
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.spawn(tick());
        let ended = runtime.block_on(self.serve(listeners, companions));
        // Dropped, it would wait for threads that ask a silent name server.
        runtime.shutdown_background();
        ended
    }

    /// Accepts until told to drain, then waits for the connections or until told to end. Every
    /// connection holds a sender; when the last one goes, the receiver wakes.
    async fn serve(
        mut self,
        listeners: Vec<Listening>,
        companions: Vec<Companion>,
    ) -> io::Result<()> {
        let Inbox {
            mut handed,
            mut all_closed,
        } = self.inbox;
        let mut acceptor = Acceptor::new(self.service, self.slots, self.seat, self.closed)?;
        acceptor.add(listeners)?;
        let begin = |companion: Companion| companion(self.phases.clone());
        let mut beside: FuturesUnordered<_> = companions.into_iter().map(begin).collect();
        let mut draining = self.phases.clone();
        loop {
            tokio::select! {
                () = draining.draining() => break,
                accepted = acceptor.accept() => accepted?,
                Some(connection) = handed.recv() => acceptor.take(connection),
                Some(ended) = beside.next(), if !beside.is_empty() => ended?,
                Some(order) = self.orders.recv() => match order {
                    Order::Open(listeners) => acceptor.add(listeners)?,
                    Order::Begin(companion) => beside.push(begin(companion)),
                    Order::Answer(here) => drop(here),
                    Order::Close(listeners, closed) => {
                        listeners.iter().for_each(|&id| acceptor.close(id));
                        // Nobody may be waiting any more.
                        let _ = closed.send(());
                    }
                },
            }
        }
        acceptor.close_all();
        // Others that still accept keep their connections from now on; these were handed on before.
        handed.close();
        while let Some(connection) = handed.recv().await {
            acceptor.take(connection);
        }
        let all_served = async {
            while acceptor.is_leaving() {
                acceptor.accept().await?;
            }
            drop(acceptor);
            all_closed.recv().await;
            Ok(())
        };
        let connections = async {
            tokio::select! {
                ended = all_served => ended,
                () = self.phases.ended() => Ok(()),
            }
        };
        let beside = async {
            while let Some(ended) = beside.next().await {
                ended?;
            }
            Ok(())
        };
        // Whoever waits for an answer gets one: by the loss of what it would come through.
        let orders = async { while self.orders.recv().await.is_some() {} };
        tokio::select! {
            ended = async { tokio::try_join!(connections, beside) } => ended.map(drop),
            () = async { orders.await; std::future::pending().await } => Ok(()),
        }
    }
}
