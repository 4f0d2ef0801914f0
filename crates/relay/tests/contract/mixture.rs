//! All that connections do, at random and many at once. `WAVES=500 cargo test mixture` goes on for minutes.

use std::io::{self, ErrorKind};
use std::net::TcpStream as Blocking;
use std::thread;
use std::time::Duration;

use peername_relay::{End, Limits, Method};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::lab::{Report, block_on, connected, pair, report};

#[test]
fn a_mixture_of_everything_arrives_and_ends_as_it_should() {
    peername_sys::process::limits::raise_open_files().unwrap();
    let waves = std::env::var("WAVES").map_or(1, |waves| waves.parse().unwrap());
    for wave in 0..waves {
        for method in [Method::Auto, Method::Uring] {
            let (outer, inner): (Vec<_>, Vec<_>) = (0..CONNECTIONS)
                .map(|_| (connected(), connected()))
                .map(|((client, down), (backend, up))| ((client, backend), (down, up)))
                .unzip();
            let relays = thread::spawn(move || relayed(inner, method));
            let seed = wave * CONNECTIONS + 1;
            block_on(async move {
                let mut connections = JoinSet::new();
                for (n, (client, backend)) in (seed..).zip(outer) {
                    connections.spawn(connection(n, client, backend));
                }
                connections.join_all().await
            });
            let reports = relays.join().unwrap();
            assert_eq!(reports.len() as u64, CONNECTIONS);
            assert!(reports.iter().all(|report| report.end != End::Idle));
        }
    }
}

fn relayed(inner: Vec<(Blocking, Blocking)>, method: Method) -> Vec<Report> {
    block_on(async move {
        let mut relays = JoinSet::new();
        for (down, up) in inner {
            relays.spawn(report(pair(down, up), method, Limits::default()));
        }
        relays.join_all().await
    })
}

async fn connection(seed: u64, client: Blocking, backend: Blocking) {
    let [client, backend] = [client, backend].map(|socket| {
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        TcpStream::from_std(socket).unwrap()
    });
    let (up, down) = (seed * 2, seed * 2 + 1);
    let both = async { tokio::join!(end(client, up, down), end(backend, down, up)) };
    let (client, backend) = timeout(Duration::from_secs(60), both)
        .await
        .unwrap_or_else(|_| panic!("connection {seed} hangs"));
    for (here, there) in [(&client, &backend), (&backend, &client)] {
        match (here.said, there.heard) {
            (Said::All(sent), Heard::All(got)) => assert_eq!(sent, got, "connection {seed}"),
            (Said::All(_), Heard::Some) => {
                let reset = [here.said, there.said].contains(&Said::Some);
                assert!(reset, "connection {seed}: a reset from nowhere");
            }
            (Said::Some, heard) => {
                assert_eq!(heard, Heard::Some, "connection {seed}: a made up end");
            }
            (Said::Cut, heard) => {
                assert_eq!(
                    there.said,
                    Said::Some,
                    "connection {seed}: {heard:?}, cut by nobody"
                );
            }
        }
    }
}

/// What one end came to.
#[derive(Debug)]
struct Came {
    said: Said,
    heard: Heard,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Said {
    /// So much, and FIN.
    All(u64),
    /// It reset the connection.
    Some,
    /// It was reset meanwhile.
    Cut,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Heard {
    /// So much, and FIN.
    All(u64),
    /// A reset came instead of an end, or before it.
    Some,
}

async fn end(socket: TcpStream, says: u64, hears: u64) -> Came {
    let (mut said, mut heard) = (None, None);
    {
        let mut saying = std::pin::pin!(say(&socket, says));
        let mut hearing = std::pin::pin!(hear(&socket, hears));
        while said.is_none() || heard.is_none() && said != Some(Said::Some) {
            tokio::select! {
                how = &mut saying, if said.is_none() => said = Some(how),
                how = &mut hearing, if heard.is_none() => heard = Some(how),
            }
        }
    }
    let said = said.unwrap_or(Said::Cut);
    if said == Said::Some {
        peername_sys::tcp::stream::reset_on_close(&socket).unwrap();
    }
    // A reset is told once: to who says or to who hears.
    let heard = heard.filter(|_| said != Said::Cut).unwrap_or(Heard::Some);
    Came { said, heard }
}

/// Messages, bulk and pauses.
async fn say(socket: &TcpStream, seed: u64) -> Said {
    let mut dice = Dice(seed);
    let mut sent = 0;
    for _ in 0..dice.below(40) {
        let (times, most, pause) = match dice.below(10) {
            0 => (1, 300_000, 0),
            1 => (5, 4_000, 1),
            2 => (1, 1, 40),
            3 => (100, 200, 0),
            _ => (20, 1024, 1),
        };
        for _ in 0..times {
            let len = 1 + dice.below(most);
            if write(socket, seed, sent, len).await.is_err() {
                return Said::Cut;
            }
            sent += len;
            match dice.below(4) {
                0 => sleep(Duration::from_millis(pause)).await,
                _ => tokio::task::yield_now().await,
            }
        }
    }
    if dice.below(5) == 0 {
        return Said::Some;
    }
    match peername_sys::tcp::stream::shutdown_write(socket) {
        Ok(()) => Said::All(sent),
        Err(_) => Said::Cut,
    }
}

async fn write(socket: &TcpStream, seed: u64, at: u64, len: u64) -> io::Result<()> {
    let bytes: Vec<u8> = (at..at + len).map(|at| octet(seed, at)).collect();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        socket.writable().await?;
        match socket.try_write(rest) {
            Ok(n) => rest = &rest[n..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Now and then slowly.
async fn hear(socket: &TcpStream, seed: u64) -> Heard {
    let (mut dice, mut got) = (Dice(!seed), 0);
    let mut buffer = vec![0; 16 * 1024];
    loop {
        socket.readable().await.unwrap();
        match socket.try_read(&mut buffer) {
            Ok(0) => return Heard::All(got),
            Ok(n) => {
                let is_right = (got..)
                    .zip(&buffer[..n])
                    .all(|(at, &o)| o == octet(seed, at));
                assert!(is_right, "stream {seed} differs after {got}");
                got += n as u64;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return Heard::Some,
        }
        if dice.below(50) == 0 {
            sleep(Duration::from_millis(dice.below(20))).await;
        }
    }
}

/// Of a stream, at a place.
fn octet(seed: u64, at: u64) -> u8 {
    ((at + seed * 7919).wrapping_mul(2_654_435_761) >> 11) as u8
}

/// The same throws for the same seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut n = self.0;
        n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (n ^ (n >> 31)) % most
    }
}

const CONNECTIONS: u64 = 100;
