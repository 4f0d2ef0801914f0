//! Connections over several workers: how they are balanced, handed off and drained.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use peername_server::access::max_connections::MaxConnections;
use peername_server::listeners::{ExistingListeners, InheritedSockets, ListenerId, Listeners};
use peername_server::workers::connections::ConnectionEntry;
use peername_server::workers::{
    self, Capacity, Incoming, Serve, WorkerTask, WorkerThreads, Workers,
};
use peername_sys::event::readiness::register_stream;
use peername_sys::ipc::inherited_socket::InheritedSocket;
use peername_sys::socket::BindOptions;
use peername_sys::tcp::listener;
use tokio::time::timeout;

/// Keeps connections open until the client closes them, and counts the open connections of each thread.
#[derive(Default)]
struct CountingService {
    open: Mutex<HashMap<thread::ThreadId, usize>>,
    /// The first connection served blocks its thread for as long as this is locked.
    gate: Mutex<()>,
    has_begun: AtomicBool,
}

impl Serve for CountingService {
    type Context = ();

    fn context(&self, _listener: ListenerId) {}

    async fn serve(self: Arc<Self>, connection: Incoming, _entry: Arc<ConnectionEntry>, (): ()) {
        self.change(|open| *open += 1);
        if !self.has_begun.swap(true, Ordering::Relaxed) {
            drop(self.gate.lock());
        }
        let stream = register_stream(connection.stream).expect("epoll_ctl(2)");
        let _ = stream.readable().await;
        self.change(|open| *open -= 1);
    }
}

impl CountingService {
    fn change(&self, change: impl FnOnce(&mut usize)) {
        let mut threads = self.open.lock().expect("a lock");
        change(threads.entry(thread::current().id()).or_default());
    }

    fn open_per_thread(&self) -> Vec<usize> {
        let threads = self.open.lock().expect("a lock");
        threads.values().copied().collect()
    }

    fn wait_for_open(&self, connections: usize) -> Result<()> {
        self.wait_until(|open| open == connections)
    }

    fn wait_until(&self, is_enough: impl Fn(usize) -> bool) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_enough(self.open_per_thread().iter().sum()) {
            ensure!(Instant::now() < deadline, "{:?}", self.open_per_thread());
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// If only the kernel's hash distributed them, two workers would differ by 20 or more connections in every third round.
#[test]
fn no_worker_has_many_more_than_another() -> Result<()> {
    let service = Arc::new(CountingService::default());
    let (workers, addr) = start_two_workers(&service)?;
    for _ in 0..5 {
        let clients: Vec<_> = (0..400)
            .map(|_| TcpStream::connect(addr))
            .collect::<Result<_, _>>()?;
        service.wait_for_open(clients.len())?;
        let open = service.open_per_thread();
        ensure!(
            open.len() == 2 && open[0].abs_diff(open[1]) <= 8,
            "{open:?}"
        );
        drop(clients);
        service.wait_for_open(0)?;
    }
    workers.drain();
    workers.end();
    workers.join();
    Ok(())
}

/// One worker hangs while the other one hands connections off to it; then both drain.
#[test]
fn connections_handed_off_before_a_drain_are_served() -> Result<()> {
    let service = Arc::new(CountingService::default());
    let (workers, addr) = start_two_workers(&service)?;
    let hang = service.gate.lock().expect("a lock");
    let first = TcpStream::connect(addr)?;
    service.wait_for_open(1)?;
    let clients: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(addr))
        .collect::<Result<_, _>>()?;
    // When the worker that still serves has 20, it has handed off about as many.
    service.wait_until(|open| open >= 20)?;
    workers.drain();
    drop(hang);
    service.wait_for_open(1 + clients.len())?;
    drop((first, clients));
    service.wait_for_open(0)?;
    workers.join();
    Ok(())
}

/// The worker hangs while clients connect to a socket that it was passed; then it drains.
#[test]
fn backlog_that_no_other_process_serves_is_served_by_a_drain() -> Result<()> {
    let service = Arc::new(CountingService::default());
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let addr = listener.local_addr()?;
    let socket = InheritedSocket::new(listener.into(), "3".to_owned())?;
    let inherited = InheritedSockets {
        owns_backlogs: true,
        ..InheritedSockets::new(vec![socket])?
    };
    let (workers, _) = start_workers(&service, 1, addr, inherited)?;
    let hang = service.gate.lock().expect("a lock");
    let clients: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(addr))
        .collect::<Result<_, _>>()?;
    workers.drain();
    drop(hang);
    service.wait_for_open(clients.len())?;
    drop(clients);
    workers.join();
    Ok(())
}

/// Another program begins to listen with SO_REUSEPORT between bind(2) and listen(2): an upgrade prepares meanwhile.
#[test]
fn address_that_another_program_has_taken_since_bind_is_in_use() -> Result<()> {
    for (wanted, own, taken) in [
        ("127.0.0.1", None, "127.0.0.1"),
        ("0.0.0.0", None, "127.0.0.1"),
        ("::1", None, "::1"),
        ("127.0.0.1", Some("0.0.0.0"), "127.0.0.1"),
        ("::1", Some("::"), "::1"),
    ] {
        let [wanted, taken]: [IpAddr; 2] = [wanted.parse()?, taken.parse()?];
        let own: Option<IpAddr> = own.map(str::parse).transpose()?;
        let first = listener::listen(SocketAddr::new(own.unwrap_or(wanted), 0), SHARED)?;
        let port = first.local_addr()?.port();
        let _own = own.is_some().then_some(first);
        let existing = ExistingListeners {
            open: Vec::from_iter(own.map(|ip| SocketAddr::new(ip, port))),
            ..ExistingListeners::default()
        };
        let addrs = [(ListenerId(0), SocketAddr::new(wanted, port))];
        let mut inherited = InheritedSockets::default();
        let listeners = Listeners::open(&addrs, &existing, 2, &mut inherited)?;
        let other = listener::listen(SocketAddr::new(taken, port), SHARED)?;
        let refused = listeners.listen().expect_err("in use");
        ensure!(refused.is_in_use(), "{refused}");
        drop(other);
        listeners.listen()?;
    }
    Ok(())
}

/// An upgrade to more workers may still be refused. Closing a socket that has taken clients would reset them.
#[test]
fn sockets_of_further_workers_take_no_client_before_they_listen() -> Result<()> {
    let previous = listener::listen(SocketAddr::from(([127, 0, 0, 1], 0)), SHARED)?;
    let addr = previous.local_addr()?;
    let mut inherited = InheritedSockets {
        previous_tcp: HashMap::from([(addr, vec![previous.try_clone()?])]),
        ..InheritedSockets::default()
    };
    let wanted = [(ListenerId(0), addr)];
    let listeners = Listeners::open(&wanted, &ExistingListeners::default(), 8, &mut inherited)?;
    let connect = || -> io::Result<Vec<_>> { (0..100).map(|_| TcpStream::connect(addr)).collect() };
    let _clients = connect()?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while listener::accept_queue_len(&previous)? < 100 {
        ensure!(Instant::now() < deadline, "other sockets have clients");
        thread::sleep(Duration::from_millis(1));
    }
    listeners.listen()?;
    let _more_clients = connect()?;
    ensure!(
        listener::accept_queue_len(&previous)? < 200,
        "only one socket has clients"
    );
    Ok(())
}

/// The exit is reported although the other worker goes on.
#[tokio::test]
async fn exit_of_one_worker_is_reported_with_its_cause() -> Result<()> {
    let panics: WorkerTask = Box::new(|_| Box::pin(async { panic!("as a bug would") }));
    let fails: WorkerTask = Box::new(|_| Box::pin(async { Err(io::Error::other("broken")) }));
    for (task, cause) in [(panics, "it panicked"), (fails, "broken")] {
        let (mut workers, _) = start_two_workers(&Arc::default())?;
        let exit = timeout(Duration::from_millis(50), workers.next_exit()).await;
        ensure!(exit.is_err(), "no worker has exited");
        workers.spawn(vec![task]);
        let exit = timeout(Duration::from_secs(10), workers.next_exit()).await?;
        let reported = exit.and_then(Result::err).map(|error| error.to_string());
        ensure!(reported.as_deref() == Some(cause), "{reported:?}");
        workers.drain();
        workers.end();
        workers.join();
    }
    Ok(())
}

#[tokio::test]
async fn every_exit_is_reported_once() -> Result<()> {
    let (mut workers, _) = start_two_workers(&Arc::default())?;
    workers.drain();
    for _ in 0..2 {
        let exit = timeout(Duration::from_secs(10), workers.next_exit()).await?;
        ensure!(matches!(exit, Some(Ok(()))), "{exit:?}");
    }
    ensure!(workers.next_exit().await.is_none());
    Ok(())
}

fn start_two_workers(service: &Arc<CountingService>) -> Result<(Workers, SocketAddr)> {
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    start_workers(service, 2, any_port, InheritedSockets::default())
}

const SHARED: BindOptions = BindOptions {
    reuse_port: true,
    v6_only: false,
};

fn start_workers(
    service: &Arc<CountingService>,
    count: usize,
    addr: SocketAddr,
    mut inherited: InheritedSockets,
) -> Result<(Workers, SocketAddr)> {
    let wanted = [(ListenerId(0), addr)];
    let existing = ExistingListeners::default();
    let listeners = Listeners::open(&wanted, &existing, count, &mut inherited)?;
    listeners.listen()?;
    let addr = listeners.addrs()[0];
    let capacity = Capacity {
        connections: MaxConnections::new(1000),
        pipes_per_worker: 0,
    };
    let threads = WorkerThreads::spawn(count)?;
    let workers = workers::start(threads, listeners, Vec::new(), service, capacity);
    Ok((workers, addr))
}
