//! The READMEs' load test: fifty connections at once, each with a header of its own, each streaming until it
//! ends; then again at once, from the same addresses and ports.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::addr::v4;
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Process, wait_for};
use crate::harness::rig::compat::CompatRig;

#[test]
fn readme_load_test_keeps_every_client() {
    let (rig, host) = (CompatRig::new(), Host::new());
    let server = Process::start(&host, "python3", &["-uc", ECHO]);
    server.wait_printed("ready");
    let _proxy = rig
        .start(&host, "./go-mmproxy -l 0.0.0.0:1122 -4 127.0.0.1:25578")
        .wait_listening(&[FRONT]);
    for (round, close) in [Close::InOrder, Close::Abruptly, Close::InOrder]
        .into_iter()
        .enumerate()
    {
        assert_eq!(
            run_round(&host, close),
            [true; CONNECTIONS as usize],
            "round {round}"
        );
    }
    let peers = wait_for("the clients that the server prints", || {
        let log = server.log();
        let peers: Vec<SocketAddr> = log.lines().filter_map(|line| line.parse().ok()).collect();
        (peers.len() == 3 * usize::from(CONNECTIONS)).then_some(peers)
    });
    let claimed: BTreeSet<_> = (1..=CONNECTIONS)
        .map(|port| v4([127, 0, 0, 1], port))
        .collect();
    let distinct: BTreeSet<_> = peers.into_iter().collect();
    assert_eq!(distinct, claimed, "the clients that the server reports");
}

/// How the clients close.
#[derive(Clone, Copy, Debug)]
enum Close {
    /// After all that they sent has come back.
    InOrder,
    /// With replies still on their way.
    Abruptly,
}

/// Runs a round; returns for each connection whether it got back what it sent.
fn run_round(host: &Host, close: Close) -> Vec<bool> {
    let connections: Vec<_> = (1..=CONNECTIONS)
        .map(|port| {
            let header = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {port} 25578\r\n");
            Conn::connect_and_send(host, FRONT, header.as_bytes())
        })
        .collect();
    let end = Instant::now() + round_duration();
    thread::scope(|scope| {
        let clients: Vec<_> = connections
            .into_iter()
            .map(|conn| scope.spawn(move || stream_message(conn, end, close)))
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap_or(false))
            .collect()
    })
}

/// Streams the message without waiting for replies, and verifies each reply.
fn stream_message(conn: Conn, end: Instant, close: Close) -> bool {
    let is_correct = thread::scope(|scope| {
        let receiver = scope.spawn(|| count_echoed(&conn, end, close));
        let mut sent = 0;
        while Instant::now() < end {
            conn.send(&PING.repeat(100));
            sent += 100 * PING.len();
            // Fifty clients share this machine with other tests.
            thread::sleep(Duration::from_millis(1));
        }
        if let Close::InOrder = close {
            conn.shutdown_write();
        }
        let received = receiver.join().unwrap_or(None);
        received.is_some_and(|received| received == sent || matches!(close, Close::Abruptly))
    });
    if let Close::Abruptly = close {
        conn.send(&PING.repeat(100));
        conn.reset();
    }
    is_correct
}

/// Counts the received bytes; `None` if they are not those of the message.
fn count_echoed(conn: &Conn, end: Instant, close: Close) -> Option<usize> {
    let mut received = 0;
    while matches!(close, Close::InOrder) || Instant::now() < end {
        let soon = Duration::from_millis(20);
        if matches!(close, Close::Abruptly) && !conn.is_answered_after(soon) {
            continue;
        }
        let bytes = conn.recv_some();
        if bytes.is_empty() {
            break;
        }
        let wanted = PING.iter().cycle().skip(received % PING.len());
        if !bytes
            .iter()
            .zip(wanted)
            .all(|(byte, wanted)| byte == wanted)
        {
            return None;
        }
        received += bytes.len();
    }
    Some(received)
}

const CONNECTIONS: u16 = 50;
const FRONT: SocketAddr = v4([127, 0, 0, 1], 1122);
const PING: &[u8] = b"PING\r\n";
/// Prints each client, and echoes.
const ECHO: &str = include_str!("load/echo.py");

/// How long the clients stream: the READMEs' ten seconds with PEERNAME_TEST_ROUND=10, else one.
fn round_duration() -> Duration {
    let seconds = std::env::var("PEERNAME_TEST_ROUND").ok();
    let seconds = seconds.map(|text| text.parse().expect("PEERNAME_TEST_ROUND: seconds"));
    Duration::from_secs(seconds.unwrap_or(1))
}
