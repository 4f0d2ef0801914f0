//! Random traffic on many connections at once. `WAVES=500 cargo test random_traffic` runs for minutes.

use std::io::{self, ErrorKind};
use std::net;
use std::thread;
use std::time::Duration;

use peername_relay::{End, Limits, Method, Prefix};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::lab::{Report, block_on, connected, pair, run_relay};

#[test]
fn random_traffic_arrives_and_ends_correctly() {
    peername_sys::process::limits::raise_open_files().unwrap();
    let waves = std::env::var("WAVES").map_or(1, |waves| waves.parse().unwrap());
    for wave in 0..waves {
        let (test_ends, relay_ends): (Vec<_>, Vec<_>) = (0..CONNECTIONS)
            .map(|_| {
                let ((client, downstream), (backend, upstream)) = (connected(), connected());
                ((client, backend), (downstream, upstream))
            })
            .unzip();
        let relays = thread::spawn(move || relay_all(relay_ends));
        let seed = wave * CONNECTIONS + 1;
        block_on(async move {
            let mut connections = JoinSet::new();
            for (n, (client, backend)) in (seed..).zip(test_ends) {
                connections.spawn(check_connection(n, client, backend));
            }
            connections.join_all().await
        });
        let reports = relays.join().unwrap();
        assert_eq!(reports.len() as u64, CONNECTIONS);
        assert!(reports.iter().all(|report| report.end != End::Idle));
    }
}

fn relay_all(connections: Vec<(net::TcpStream, net::TcpStream)>) -> Vec<Report> {
    block_on(async move {
        let mut relays = JoinSet::new();
        for (downstream, upstream) in connections {
            relays.spawn(run_relay(
                pair(downstream, upstream),
                Prefix::default(),
                Method::Auto,
                Limits::default(),
            ));
        }
        relays.join_all().await
    })
}

/// Sends on both ends of a relayed connection and compares what one end sent with what the other one received.
async fn check_connection(seed: u64, client: net::TcpStream, backend: net::TcpStream) {
    let [client, backend] = [client, backend].map(|socket| {
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        TcpStream::from_std(socket).unwrap()
    });
    let (up, down) = (seed * 2, seed * 2 + 1);
    let both = async { tokio::join!(run_end(client, up, down), run_end(backend, down, up)) };
    let (client, backend) = timeout(Duration::from_secs(60), both)
        .await
        .unwrap_or_else(|_| panic!("connection {seed} hangs"));
    for (sender, receiver) in [(&client, &backend), (&backend, &client)] {
        match (sender.sent, receiver.received) {
            (SendEnd::Finished(sent), ReceiveEnd::Finished(got)) => {
                assert_eq!(sent, got, "connection {seed}");
            }
            (SendEnd::Finished(_), ReceiveEnd::Reset) => {
                let has_reset = [sender.sent, receiver.sent].contains(&SendEnd::Reset);
                assert!(
                    has_reset,
                    "connection {seed}: a reset that neither end sent"
                );
            }
            (SendEnd::Reset, received_end) => {
                assert_eq!(
                    received_end,
                    ReceiveEnd::Reset,
                    "connection {seed}: a FIN that was not sent"
                );
            }
            (SendEnd::Interrupted, received_end) => {
                assert_eq!(
                    receiver.sent,
                    SendEnd::Reset,
                    "connection {seed}: {received_end:?}, a reset that was not sent"
                );
            }
        }
    }
}

/// What one end sent and received.
#[derive(Debug)]
struct Outcome {
    sent: SendEnd,
    received: ReceiveEnd,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SendEnd {
    /// This many bytes, then FIN.
    Finished(u64),
    /// This end reset the connection.
    Reset,
    /// The connection was reset while this end was sending.
    Interrupted,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ReceiveEnd {
    /// This many bytes, then FIN.
    Finished(u64),
    /// A reset arrived before the FIN.
    Reset,
}

/// Sends and receives until both directions have ended, or until this end is to reset the connection.
async fn run_end(socket: TcpStream, send_seed: u64, receive_seed: u64) -> Outcome {
    let (mut sent_end, mut received_end) = (None, None);
    {
        let mut sending = std::pin::pin!(send(&socket, send_seed));
        let mut receiving = std::pin::pin!(receive(&socket, receive_seed));
        while sent_end.is_none() || received_end.is_none() && sent_end != Some(SendEnd::Reset) {
            tokio::select! {
                how = &mut sending, if sent_end.is_none() => sent_end = Some(how),
                how = &mut receiving, if received_end.is_none() => received_end = Some(how),
            }
        }
    }
    let sent_end = sent_end.unwrap_or(SendEnd::Interrupted);
    if sent_end == SendEnd::Reset {
        peername_sys::tcp::stream::reset_on_close(&socket).unwrap();
    }
    // A reset is reported once: to the sender or to the receiver.
    let received_end = received_end
        .filter(|_| sent_end != SendEnd::Interrupted)
        .unwrap_or(ReceiveEnd::Reset);
    Outcome {
        sent: sent_end,
        received: received_end,
    }
}

/// Sends messages, bulk and pauses.
async fn send(socket: &TcpStream, seed: u64) -> SendEnd {
    let mut rng = Rng(seed);
    let mut sent = 0;
    for _ in 0..rng.below(40) {
        let (times, max_len, pause_millis) = match rng.below(10) {
            0 => (1, 300_000, 0),
            1 => (5, 4_000, 1),
            2 => (1, 1, 40),
            3 => (100, 200, 0),
            _ => (20, 1024, 1),
        };
        for _ in 0..times {
            let len = 1 + rng.below(max_len);
            if write(socket, seed, sent, len).await.is_err() {
                return SendEnd::Interrupted;
            }
            sent += len;
            match rng.below(4) {
                0 => sleep(Duration::from_millis(pause_millis)).await,
                _ => tokio::task::yield_now().await,
            }
        }
    }
    if rng.below(5) == 0 {
        return SendEnd::Reset;
    }
    match peername_sys::tcp::stream::shutdown_write(socket) {
        Ok(()) => SendEnd::Finished(sent),
        Err(_) => SendEnd::Interrupted,
    }
}

async fn write(socket: &TcpStream, seed: u64, at: u64, len: u64) -> io::Result<()> {
    let bytes: Vec<u8> = (at..at + len).map(|at| byte_at(seed, at)).collect();
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

/// Receives and verifies, now and then slowly.
async fn receive(socket: &TcpStream, seed: u64) -> ReceiveEnd {
    let (mut rng, mut got) = (Rng(!seed), 0);
    let mut buffer = vec![0; 16 * 1024];
    loop {
        socket.readable().await.unwrap();
        match socket.try_read(&mut buffer) {
            Ok(0) => return ReceiveEnd::Finished(got),
            Ok(n) => {
                let is_correct = (got..)
                    .zip(&buffer[..n])
                    .all(|(at, &byte)| byte == byte_at(seed, at));
                assert!(is_correct, "stream {seed} differs after {got}");
                got += n as u64;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return ReceiveEnd::Reset,
        }
        if rng.below(50) == 0 {
            sleep(Duration::from_millis(rng.below(20))).await;
        }
    }
}

/// The byte of a stream at an offset: depends on both, so that loss, reordering and mixed up streams are detected.
fn byte_at(seed: u64, at: u64) -> u8 {
    ((at + seed * 7919).wrapping_mul(2_654_435_761) >> 11) as u8
}

/// A deterministic random generator (splitmix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut n = self.0;
        n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (n ^ (n >> 31)) % bound
    }
}

const CONNECTIONS: u64 = 100;
