//! Each reply goes to the session that asked, though several sessions have the same client.

use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use serde_json::Value;

use crate::harness::addr::{BALANCER_V4, FRONT_V4, FRONT_V6, LISTEN_V4, v4, v6};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::Host;
use crate::harness::rig::udp::UdpRig;

/// Two balancers relay the same 500 clients, half of them IPv6, which have another target. Each client sends to two ports of
/// each balancer, and each balancer to two listeners: 4,000 sessions in all. A client's eight sessions differ only in their
/// path. The test sends 100,000 requests, or as many as PEERNAME_TEST_DATAGRAMS says.
#[test]
fn no_reply_is_misdelivered() {
    deliver(&[]);
}

/// The kernel serves half of the clients: the others differ in family from their balancers, and can't be offloaded.
#[test]
fn offload_misdelivers_no_reply() {
    let totals = deliver(&["--data-path=kernel"]);
    let in_kernel = totals["datagrams_in_kernel"].as_u64().expect("a number");
    assert!(in_kernel > request_count() as u64 / 2, "{totals}");
    assert_eq!(totals["datagrams_dropped"], "", "{totals}");
}

fn deliver(args: &[&str]) -> Value {
    let second = v4([10, 81, 0, 1], 8444);
    let listen = format!("--listen={second}");
    let mut rig = UdpRig::new(&[&[&listen, "--workers=2"], args].concat());
    rig.lab.balancer.ip("address add 10.81.0.3/24 dev lan");
    let paths = paths(&rig.lab.balancer, [LISTEN_V4, second]);
    let stop = Arc::new(AtomicBool::new(false));
    let backends = [&rig.backend_v4, &rig.backend_v6].map(|backend| echo(backend.socket(), &stop));
    let clients: Vec<SocketAddr> = (0..500).map(client).collect();
    // The session (path and client) of each endpoint that a backend has seen.
    let mut endpoints: HashMap<SocketAddr, (usize, usize)> = HashMap::new();
    for from in (0..request_count()).step_by(WINDOW) {
        // The requests in flight fit the sockets' buffers, so a missing datagram was lost by the proxy.
        let mut waiting = HashSet::new();
        for number in from..from + WINDOW {
            let request = Request {
                number,
                path: number % paths.len(),
                client: number / paths.len() % clients.len(),
            };
            paths[request.path].send_request(clients[request.client], &request);
            waiting.insert(request);
        }
        for (number, path) in paths.iter().enumerate() {
            for _ in 0..WINDOW / paths.len() {
                let (request, seen) = path.recv_reply();
                assert_eq!(request.path, number, "a reply on another path");
                assert!(
                    waiting.remove(&request),
                    "a second reply, or a late one: {request:?}"
                );
                assert_eq!(seen.ip(), clients[request.client].ip(), "another client");
                let session = (request.path, request.client);
                let owner = *endpoints.entry(seen).or_insert(session);
                assert_eq!(owner, session, "{seen} belongs to two sessions");
            }
        }
        assert!(waiting.is_empty(), "{waiting:?}");
    }
    stop.store(true, Ordering::Relaxed);
    backends
        .into_iter()
        .for_each(|echo| echo.join().expect("a backend"));
    assert_eq!(endpoints.len(), paths.len() * clients.len());
    let totals = rig.stop();
    assert_eq!(totals["udp_sessions"], endpoints.len());
    totals
}

/// The path of a request to the proxy.
struct Path {
    balancer: DatagramSocket,
    listener: SocketAddr,
    /// The port of the balancer that the client has sent to.
    front: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Request {
    number: usize,
    path: usize,
    client: usize,
}

/// Each path has a socket of its own, so that a reply on the wrong one shows.
fn paths(host: &Host, listeners: [SocketAddr; 2]) -> Vec<Path> {
    let path = |(balancer, listener, front)| Path {
        balancer: DatagramSocket::bind(host, SocketAddr::new(balancer, 0)),
        listener,
        front,
    };
    [BALANCER_V4, v4([10, 81, 0, 3], 0).ip()]
        .into_iter()
        .flat_map(|balancer| listeners.map(|listener| (balancer, listener)))
        .flat_map(|(balancer, listener)| [80, 81].map(|front| (balancer, listener, front)))
        .map(path)
        .collect()
}

fn client(number: u16) -> SocketAddr {
    let (host, port) = (number % 250 + 1, 20_000 + number);
    if number.is_multiple_of(2) {
        v4([198, 51, 100, host as u8], port)
    } else {
        v6([0x2001, 0xdb8, 7, 0, 0, 0, 0, host], port)
    }
}

impl Path {
    fn send_request(&self, client: SocketAddr, request: &Request) {
        let front = if client.is_ipv4() { FRONT_V4 } else { FRONT_V6 };
        let header = header_bytes::v2_udp(client, SocketAddr::new(front.ip(), self.front));
        let question = format!("{} {} {}", request.number, request.path, request.client);
        self.balancer
            .send(self.listener, &[&header, question.as_bytes()]);
    }

    /// Receives a reply; returns its request, and the client that the backend saw.
    #[track_caller]
    fn recv_reply(&self) -> (Request, SocketAddr) {
        let (bytes, from) = self.balancer.recv();
        assert_eq!(from, self.listener, "a reply from another listener");
        let text = String::from_utf8(bytes).expect("text");
        let fields: Vec<&str> = text.split(' ').collect();
        let [number, path, client] =
            [0, 1, 2].map(|index| fields[index].parse().expect("a number"));
        let request = Request {
            number,
            path,
            client,
        };
        (request, fields[3].parse().expect("an endpoint"))
    }
}

/// Sends each datagram back, with the address that it came from appended.
fn echo(socket: &UdpSocket, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (socket, stop) = (socket.try_clone().expect("dup"), Arc::clone(stop));
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .expect("SO_RCVTIMEO");
    spawn(move || {
        let mut buffer = [0; 64];
        while !stop.load(Ordering::Relaxed) {
            let Ok((n, from)) = socket.recv_from(&mut buffer) else {
                continue;
            };
            let answer = [&buffer[..n], format!(" {from}").as_bytes()].concat();
            socket.send_to(&answer, from).expect("send");
        }
    })
}

/// Enough for every session to be used several times.
fn request_count() -> usize {
    std::env::var("PEERNAME_TEST_DATAGRAMS")
        .map_or(100_000, |count| count.parse().expect("a number"))
}

/// Requests in flight.
const WINDOW: usize = 80;
