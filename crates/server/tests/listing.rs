//! Listing tens of thousands of connections while a worker serves them: a test program of its own, as it takes all descriptors.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::StreamExt;
use peername_observe::connections::ConnectionSource;
use peername_server::access::max_connections::MaxConnections;
use peername_server::listeners::{ExistingListeners, InheritedSockets, ListenerId, Listeners};
use peername_server::workers::connections::{ConnectionEntry, OpenConnections};
use peername_server::workers::{self, Capacity, Incoming, Serve, WorkerThreads};
use peername_sys::event::readiness::register_stream;
use peername_sys::process::limits::max_open_files;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime;

/// Sends back what it receives.
struct Echo;

impl Serve for Echo {
    type Context = ();

    fn context(&self, _listener: ListenerId) {}

    async fn serve(self: Arc<Self>, connection: Incoming, _entry: Arc<ConnectionEntry>, (): ()) {
        let mut stream = register_stream(connection.stream).expect("epoll_ctl(2)");
        let mut byte = [0];
        while matches!(stream.read(&mut byte).await, Ok(1)) {
            let _ = stream.write_all(&byte).await;
        }
    }
}

/// A listing takes long, but its batches are short, and clients are served between them.
#[test]
fn listing_does_not_pause_the_worker() -> Result<()> {
    let wanted = [(ListenerId(0), SocketAddr::from(([0, 0, 0, 0], 0)))];
    let (existing, mut inherited) = (ExistingListeners::default(), InheritedSockets::default());
    let listeners = Listeners::open(&wanted, &existing, 1, &mut inherited)?;
    listeners.listen()?;
    let port = listeners.addrs()[0].port();
    let capacity = Capacity {
        connections: MaxConnections::new(60_000),
        pipes_per_worker: 0,
    };
    let threads = WorkerThreads::spawn(1)?;
    let workers = workers::start(threads, listeners, Vec::new(), &Arc::new(Echo), capacity);
    // Both ends of a connection are in this process.
    let descriptors = usize::try_from(max_open_files())?.saturating_sub(OTHER_DESCRIPTORS);
    let count = CONNECTIONS.min(descriptors / 2);
    let mut clients = Vec::new();
    for number in 0..count {
        // An address has only 28,000 ephemeral ports.
        let address = Ipv4Addr::from_bits(0x7f00_0001 + (number / 10_000) as u32);
        clients.push(TcpStream::connect((address, port))?);
    }
    let mut client = clients.last().expect("a connection");
    client.set_nodelay(true)?;
    let mut ping = || -> Result<Duration> {
        let since = Instant::now();
        client.write_all(b"!")?;
        client.read_exact(&mut [0])?;
        Ok(since.elapsed())
    };
    ping()?;
    let connections = workers.connections();
    let mut longest = Vec::new();
    for _ in 0..LISTINGS {
        longest.push(longest_ping_during_a_listing(
            &connections,
            count,
            &mut ping,
        )?);
    }
    longest.sort();
    println!("{count} connections, longest round trip per listing: {longest:?}");
    // The median, because other processes share the CPUs.
    ensure!(longest[LISTINGS / 2] < MAX_PAUSE, "{longest:?}");
    drop(clients);
    workers.drain();
    workers.end();
    workers.join();
    Ok(())
}

/// Lists all connections on another thread, and pings meanwhile.
fn longest_ping_during_a_listing(
    connections: &OpenConnections,
    count: usize,
    mut ping: impl FnMut() -> Result<Duration>,
) -> Result<Duration> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let listing = scope.spawn(|| {
            let listed = runtime::Builder::new_current_thread()
                .build()
                .map(|runtime| {
                    let batches = connections.snapshots().map(|batch| batch.len());
                    runtime.block_on(batches.fold(0, async |sum, len| sum + len))
                });
            is_over.store(true, Relaxed);
            listed
        });
        let mut longest = Duration::ZERO;
        while !is_over.load(Relaxed) {
            longest = longest.max(ping()?);
        }
        let listed = listing.join().expect("no panic")?;
        ensure!(listed == count, "{listed} of {count} were listed");
        Ok(longest)
    })
}

const CONNECTIONS: usize = 50_000;
/// Descriptors of this process that are no connections.
const OTHER_DESCRIPTORS: usize = 200;
const LISTINGS: usize = 9;
const MAX_PAUSE: Duration = Duration::from_millis(10);
