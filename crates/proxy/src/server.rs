//! The loops: one thread per worker, each with a listening socket of its own on every address.
//!
//! A worker is a current-thread runtime: its connections never move to another thread, take no lock
//! and wake nobody. The kernel spreads connections over the workers' sockets (SO_REUSEPORT).

use std::net::{self, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, iter};

use peername_relay::limit_pipes;
use peername_sys::listen::{self, Sharing};
use peername_sys::{Failed, is_broken_listener, is_of_one_connection, stream, transparent};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use crate::addr::{LocalAddr, PeerAddr};
use crate::throttle::Throttle;

/// What a worker does beside its connections, on the same thread: begins there, and ends when the
/// [`Phases`] say so or by itself.
pub type Companion = Box<dyn FnOnce(Phases) -> Beside + Send>;
type Beside = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// What is done with a connection.
pub trait Serve: Send + Sync + 'static {
    /// Serves one connection to its end.
    fn serve(&self, connection: Incoming) -> impl Future<Output = ()> + Send;
}

/// A connection as the kernel gave it.
#[derive(Debug)]
pub struct Incoming {
    /// The socket.
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

/// Listening sockets that nobody accepts from yet.
pub struct Bound {
    /// Of each worker, its sockets.
    workers: Vec<Vec<net::TcpListener>>,
    /// Of each worker, what it does beside; may be fewer than workers.
    companions: Vec<Companion>,
}

/// Running loops.
#[derive(Debug)]
pub struct Running {
    phase: watch::Sender<Phase>,
    workers: Vec<JoinHandle<io::Result<()>>>,
}

/// Opening a listening socket failed.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {addr}: {failed}{}", hint(failed))]
pub struct BindError {
    pub(crate) addr: SocketAddr,
    pub(crate) failed: Failed,
}

impl Bound {
    /// Opens a socket on each address for each of `workers`, so that whatever can't be listened on is
    /// known before anything is served.
    ///
    /// # Errors
    ///
    /// The address that failed, with what to do about it.
    pub fn open(listen: &[SocketAddr], workers: usize) -> Result<Self, BindError> {
        let open = |addr, sharing| {
            let listener = listen::tcp(addr, sharing)?;
            // Accepted sockets inherit these, which saves five calls a connection.
            stream::tune(&listener)?;
            Ok(listener)
        };
        let addr = net::TcpListener::local_addr;
        let workers = open_for_all(listen, workers, listen::is_free, open, addr)?;
        Ok(Self {
            workers,
            companions: Vec::new(),
        })
    }

    /// Lets the sockets take what a TPROXY rule gives them; a connection's listener is then where it was
    /// made to.
    ///
    /// # Errors
    ///
    /// The address, where IP_TRANSPARENT is not permitted.
    pub fn transparent(self) -> Result<Self, BindError> {
        let addrs = self.addrs();
        let named = self
            .workers
            .iter()
            .flat_map(|sockets| sockets.iter().zip(&addrs));
        for (socket, &addr) in named {
            transparent::set(socket, addr.is_ipv6())
                .map_err(|failed| BindError { addr, failed })?;
        }
        Ok(self)
    }

    /// Gives the workers something to do beside their connections: the first companion to the first
    /// worker, and so on.
    #[must_use]
    pub fn with(mut self, companions: Vec<Companion>) -> Self {
        self.companions = companions;
        self
    }

    /// The addresses listened on.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.workers
            .first()
            .into_iter()
            .flatten()
            .filter_map(|l| l.local_addr().ok())
            .collect()
    }

    /// Starts the loops.
    ///
    /// # Errors
    ///
    /// The system refuses a thread.
    pub fn start<S: Serve>(self, service: &Arc<S>, capacity: Capacity) -> io::Result<Running> {
        let (phase, _) = watch::channel(Phase::Serve);
        let slots = Arc::new(Semaphore::new(
            capacity.connections.min(Semaphore::MAX_PERMITS),
        ));
        let companions = self.companions.into_iter().map(Some);
        let companions = companions.chain(iter::repeat_with(|| None));
        let start = |((number, listeners), companion): ((usize, Vec<_>), Option<Companion>)| {
            let worker = Worker {
                service: Arc::clone(service),
                slots: Arc::clone(&slots),
                phases: Phases(phase.subscribe()),
                pipes: capacity.pipes_of_a_worker,
            };
            thread::Builder::new()
                .name(format!("worker-{number}"))
                .spawn(move || worker.run(listeners, companion))
        };
        let workers = self
            .workers
            .into_iter()
            .enumerate()
            .zip(companions)
            .map(start)
            .collect::<io::Result<_>>()?;
        Ok(Running { phase, workers })
    }
}

impl Running {
    /// Accepts no more; open connections go on.
    pub fn drain(&self) {
        self.phase.send_replace(Phase::Drain);
    }

    /// Ends what is still open.
    pub fn end(&self) {
        self.phase.send_replace(Phase::End);
    }

    /// Whether every loop has ended.
    pub fn has_ended(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    /// Waits for a loop that ended without being told to, and returns why; `None` while all serve.
    pub fn failure(&mut self) -> Option<io::Error> {
        let ended = self.workers.iter().position(JoinHandle::is_finished)?;
        match self.workers.swap_remove(ended).join() {
            Ok(Err(error)) => Some(error),
            Ok(Ok(())) => Some(io::Error::other("it stopped accepting")),
            Err(_) => Some(io::Error::other("it panicked")),
        }
    }

    /// Waits until every loop has ended; after [`Running::end`] that is at once.
    pub fn join(self) {
        for worker in self.workers {
            let _ = worker.join();
        }
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
pub struct Phases(watch::Receiver<Phase>);

impl Phases {
    /// Waits until nothing new may begin.
    pub async fn draining(&mut self) {
        let _ = self.0.wait_for(|phase| *phase != Phase::Serve).await;
    }

    /// Waits until everything must end.
    pub async fn ended(&mut self) {
        let _ = self.0.wait_for(|phase| *phase == Phase::End).await;
    }
}

/// Opens every address for each of `workers`. With port 0 the kernel chooses for the first worker, and
/// the others share its choice.
pub(crate) fn open_for_all<T>(
    listen: &[SocketAddr],
    workers: usize,
    is_free: impl Fn(SocketAddr) -> peername_sys::Result<()>,
    open: impl Fn(SocketAddr, Sharing) -> peername_sys::Result<T>,
    local_addr: impl Fn(&T) -> io::Result<SocketAddr>,
) -> Result<Vec<Vec<T>>, BindError> {
    let named = |addr| move |failed| BindError { addr, failed };
    let open_all = |addrs: &[SocketAddr]| {
        let open = |&addr: &SocketAddr| {
            let is_v4_of_port = |other: &SocketAddr| other.is_ipv4() && other.port() == addr.port();
            let sharing = Sharing {
                among_workers: workers > 1,
                v4_elsewhere: addrs.iter().any(is_v4_of_port),
            };
            open(addr, sharing).map_err(named(addr))
        };
        addrs.iter().map(open).collect::<Result<Vec<_>, _>>()
    };
    for &addr in listen {
        // With SO_REUSEPORT a second proxy would get some of the first one's clients.
        is_free(addr).map_err(named(addr))?;
    }
    let first = open_all(listen)?;
    let chosen: Vec<_> = first
        .iter()
        .filter_map(|socket| local_addr(socket).ok())
        .collect();
    let others = (1..workers).map(|_| open_all(&chosen));
    iter::once(Ok(first)).chain(others).collect()
}

struct Worker<S> {
    service: Arc<S>,
    slots: Arc<Semaphore>,
    phases: Phases,
    pipes: usize,
}

impl<S: Serve> Worker<S> {
    fn run(self, listeners: Vec<net::TcpListener>, companion: Option<Companion>) -> io::Result<()> {
        limit_pipes(self.pipes);
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let phases = self.phases.clone();
        runtime.block_on(async {
            match companion {
                Some(begin) => tokio::try_join!(self.serve(listeners), begin(phases)).map(drop),
                None => self.serve(listeners).await,
            }
        })
    }

    /// Accepts until told to drain, then waits for the connections or until told to end. Every
    /// connection holds a sender; when the last one goes, the receiver wakes.
    async fn serve(mut self, listeners: Vec<net::TcpListener>) -> io::Result<()> {
        let (open, mut all_closed) = mpsc::channel::<()>(1);
        let mut accepting = JoinSet::new();
        for listener in listeners {
            let listener = TcpListener::from_std(listener)?;
            let (service, slots) = (Arc::clone(&self.service), Arc::clone(&self.slots));
            accepting.spawn(accept(listener, service, slots, open.clone()));
        }
        drop(open);
        tokio::select! {
            Some(Ok(error)) = accepting.join_next() => return Err(error),
            () = self.phases.draining() => {}
        }
        accepting.shutdown().await;
        tokio::select! {
            _ = all_closed.recv() => {}
            () = self.phases.ended() => {}
        }
        Ok(())
    }
}

/// Accepts until the listener itself is broken, and returns how. What concerns one connection is
/// skipped, and when descriptors or memory have run out, waiting is all that helps.
async fn accept<S: Serve>(
    listener: TcpListener,
    service: Arc<S>,
    slots: Arc<Semaphore>,
    open: mpsc::Sender<()>,
) -> io::Error {
    let addr = match listener.local_addr() {
        Ok(addr) => LocalAddr(addr),
        Err(error) => return error,
    };
    let is_transparent = transparent::is_set(&listener).unwrap_or(false);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if is_broken_listener(&error) => return error,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) => {
                pause(&error).await;
                continue;
            }
        };
        let slot = slot(&slots).await;
        let asked = is_transparent.then(|| stream.local_addr().ok()).flatten();
        let listener = asked.map_or(addr, LocalAddr::canonical);
        let incoming = Incoming {
            stream,
            peer: PeerAddr(peer),
            listener,
        };
        let (service, open) = (Arc::clone(&service), open.clone());
        tokio::spawn(async move {
            service.serve(incoming).await;
            drop((slot, open));
        });
    }
}

/// A place among the open connections. The one that is one too many waits here, and the others
/// behind it in the kernel's queue.
async fn slot(slots: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    if let Ok(slot) = Arc::clone(slots).try_acquire_owned() {
        return Some(slot);
    }
    if let Some(suppressed) = FULL.pass() {
        tracing::warn!(
            suppressed,
            "as many connections are open as descriptors allow; others wait. Raise LimitNOFILE or \
             `ulimit -n` if this is the normal load"
        );
    }
    // It fails only when the semaphore is closed, which this one never is.
    Arc::clone(slots).acquire_owned().await.ok()
}

async fn pause(error: &io::Error) {
    if let Some(suppressed) = EXHAUSTED.pass() {
        tracing::warn!(
            suppressed,
            "accept(2): {error}; trying again. If descriptors or memory have run out, raise LimitNOFILE \
             or the limits of the service"
        );
    }
    tokio::time::sleep(PAUSE).await;
}

fn hint(error: &Failed) -> &'static str {
    match error.source.kind() {
        io::ErrorKind::PermissionDenied if error.call.contains("TRANSPARENT") => {
            "; --listen-transparent needs CAP_NET_RAW: run as root, or `setcap \
             cap_net_raw,cap_net_bind_service+ep` on the binary"
        }
        io::ErrorKind::AddrInUse => "; another program listens there: `ss -ltnp` shows which",
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need CAP_NET_BIND_SERVICE: run as root, or `setcap \
             cap_net_raw,cap_net_bind_service+ep` on the binary"
        }
        io::ErrorKind::AddrNotAvailable => "; no interface of this host has that address",
        _ => "",
    }
}

static FULL: Throttle = Throttle::new(Duration::from_secs(10));
static EXHAUSTED: Throttle = Throttle::new(Duration::from_secs(10));
/// Long enough for connections to close, short enough not to be felt once they have.
const PAUSE: Duration = Duration::from_millis(50);
