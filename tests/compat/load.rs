//! The READMEs' load: fifty connections at once, each with a header of its own, each talking until it is
//! over; and at once again, from the same addresses and ports.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::Bench;
use crate::addr::v4;
use crate::conn::Conn;
use crate::lab::{Host, Process};

#[test]
fn fifty_connections_again_and_again() {
    let (bench, host) = (Bench::new(), Host::new());
    let server = Process::start(&host, "python3", &["-uc", ECHO]);
    server.line("that it is there", |line| (line == "ready").then_some(()));
    let _proxy = bench
        .start(&host, "./go-mmproxy -l 0.0.0.0:1122 -4 127.0.0.1:25578")
        .listens(&[FRONT]);
    for round in 0..3 {
        let answered = load(&host);
        assert_eq!(answered, [true; CONNECTIONS as usize], "round {round}");
    }
    let peers = server.log();
    let peers: Vec<SocketAddr> = peers.lines().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(peers.len(), 3 * usize::from(CONNECTIONS));
    let claimed: BTreeSet<_> = (1..=CONNECTIONS)
        .map(|uid| v4([127, 0, 0, 1], uid))
        .collect();
    let distinct: BTreeSet<_> = peers.into_iter().collect();
    assert_eq!(distinct, claimed, "who the server says its clients are");
}

/// Whether each connection got back all that it sent.
fn load(host: &Host) -> Vec<bool> {
    let ends = Instant::now() + ROUND;
    let connections: Vec<_> = (1..=CONNECTIONS)
        .map(|uid| {
            let header = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {uid} 25578\r\n");
            (Conn::open(host, FRONT, header.as_bytes()), ends)
        })
        .collect();
    let talk = |(conn, ends): (Conn, Instant)| {
        let mut good = true;
        while Instant::now() < ends {
            conn.send(PING);
            good &= conn.recv(PING.len()) == PING;
        }
        good
    };
    thread::scope(|scope| {
        let talks: Vec<_> = connections
            .into_iter()
            .map(|connection| scope.spawn(move || talk(connection)))
            .collect();
        talks
            .into_iter()
            .map(|talk| talk.join().unwrap_or(false))
            .collect()
    })
}

const CONNECTIONS: u16 = 50;
const FRONT: SocketAddr = v4([127, 0, 0, 1], 1122);
const PING: &[u8] = b"PING\r\n";
/// The READMEs take ten seconds.
const ROUND: Duration = Duration::from_secs(1);

/// Prints who comes, and says everything back.
const ECHO: &str = r#"
import asyncio
async def echo(reader, writer):
    print("%s:%d" % writer.get_extra_info("peername"))
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 25578, backlog=1024)
    print("ready")
    await server.serve_forever()
asyncio.run(main())
"#;
