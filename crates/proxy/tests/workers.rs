//! Connections among workers, as the kernel deals them out and the workers hand them on.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use peername_proxy::listeners::{Beside, Given, Listeners};
use peername_proxy::server::{self, Capacity, Companion, Incoming, Running, Serve};
use peername_proxy::service::ListenerId;
use peername_sys::event::readiness::register_stream;
use tokio::time::timeout;

/// Which threads serve how many.
#[derive(Default)]
struct Census {
    open: Mutex<HashMap<thread::ThreadId, usize>>,
    /// Whoever is served first keeps the thread for as long as this is locked.
    gate: Mutex<()>,
    has_begun: AtomicBool,
}

impl Serve for Census {
    type By = ();

    fn by(&self, _listener: ListenerId) {}

    async fn serve(self: Arc<Self>, connection: Incoming, (): ()) {
        self.change(|open| *open += 1);
        if !self.has_begun.swap(true, Ordering::Relaxed) {
            drop(self.gate.lock());
        }
        // Until the client closes.
        let stream = register_stream(connection.stream).expect("epoll_ctl(2)");
        let _ = stream.readable().await;
        self.change(|open| *open -= 1);
    }
}

impl Census {
    fn change(&self, change: impl FnOnce(&mut usize)) {
        let mut threads = self.open.lock().expect("a lock");
        change(threads.entry(thread::current().id()).or_default());
    }

    fn open(&self) -> Vec<usize> {
        let threads = self.open.lock().expect("a lock");
        threads.values().copied().collect()
    }

    fn wait_for(&self, all: usize) -> Result<()> {
        self.wait_until(|open| open == all)
    }

    fn wait_until(&self, enough: impl Fn(usize) -> bool) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !enough(self.open().iter().sum()) {
            ensure!(Instant::now() < deadline, "{:?}", self.open());
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Dealt out by the hash alone, two workers would differ by 20 or more in every third round.
#[test]
fn no_worker_has_many_more_than_another() -> Result<()> {
    let census = Arc::new(Census::default());
    let (running, addr) = two_workers(&census)?;
    for _ in 0..5 {
        let clients: Vec<_> = (0..400)
            .map(|_| TcpStream::connect(addr))
            .collect::<Result<_, _>>()?;
        census.wait_for(clients.len())?;
        let open = census.open();
        ensure!(
            open.len() == 2 && open[0].abs_diff(open[1]) <= 8,
            "{open:?}"
        );
        drop(clients);
        census.wait_for(0)?;
    }
    running.drain();
    running.end();
    running.join();
    Ok(())
}

/// One worker hangs, and the other hands it what it accepts; then no more is to be accepted.
#[test]
fn what_was_handed_on_before_a_drain_is_served() -> Result<()> {
    let census = Arc::new(Census::default());
    let (running, addr) = two_workers(&census)?;
    let hangs = census.gate.lock().expect("a lock");
    let first = TcpStream::connect(addr)?;
    census.wait_for(1)?;
    let clients: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(addr))
        .collect::<Result<_, _>>()?;
    // By then it has handed on about as many.
    census.wait_until(|open| open >= 20)?;
    running.drain();
    drop(hangs);
    census.wait_for(1 + clients.len())?;
    drop((first, clients));
    census.wait_for(0)?;
    running.join();
    Ok(())
}

/// One of two: the process is to hear of it although the other goes on.
#[tokio::test]
async fn the_end_of_a_worker_is_told_and_why() -> Result<()> {
    let panics: Companion = Box::new(|_| Box::pin(async { panic!("as a bug would") }));
    let fails: Companion = Box::new(|_| Box::pin(async { Err(io::Error::other("broken")) }));
    for (breaks, why) in [(panics, "it panicked"), (fails, "broken")] {
        let (mut running, _) = two_workers(&Arc::default())?;
        let stays = timeout(Duration::from_millis(50), running.next_end()).await;
        ensure!(stays.is_err(), "nobody has ended");
        running.begin(vec![breaks]);
        let end = timeout(Duration::from_secs(10), running.next_end()).await?;
        let told = end.and_then(Result::err).map(|error| error.to_string());
        ensure!(told.as_deref() == Some(why), "{told:?}");
        running.drain();
        running.end();
        running.join();
    }
    Ok(())
}

/// Who waits for all to end hears of each, and then that there are no more.
#[tokio::test]
async fn all_ends_are_told() -> Result<()> {
    let (mut running, _) = two_workers(&Arc::default())?;
    running.drain();
    for _ in 0..2 {
        let end = timeout(Duration::from_secs(10), running.next_end()).await?;
        ensure!(matches!(end, Some(Ok(()))), "{end:?}");
    }
    ensure!(running.next_end().await.is_none());
    Ok(())
}

fn two_workers(census: &Arc<Census>) -> Result<(Running, SocketAddr)> {
    let wanted = [(ListenerId(0), SocketAddr::from(([127, 0, 0, 1], 0)))];
    let listeners = Listeners::open(&wanted, &Beside::default(), 2, &Given::default())?;
    let addr = listeners.addrs()[0];
    let capacity = Capacity {
        connections: 1000,
        pipes_of_a_worker: 0,
    };
    let running = server::start(listeners, Vec::new(), census, capacity)?;
    Ok((running, addr))
}
