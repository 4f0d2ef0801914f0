//! The generator and the sink of datagrams. It is relays that do wrong here, between the real generator
//! and the real backend.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{expect, passes};

/// A datagram and the number of the client whose it is to be.
type Datagram = (usize, Vec<u8>);

#[test]
fn an_honest_relay_passes() {
    for workload in WORKLOADS {
        let output = load(workload, |datagram| vec![datagram]);
        passes(workload, &output);
    }
}

#[test]
fn a_flipped_bit_fails() {
    for workload in WORKLOADS {
        let output = load(workload, |(client, mut bytes)| {
            if is_measured(&bytes) {
                bytes[40] ^= 0x10;
            }
            vec![(client, bytes)]
        });
        expect(workload, &output, "byte 24 came back as");
    }
}

#[test]
fn a_cut_datagram_fails() {
    for workload in WORKLOADS {
        let output = load(workload, |(client, mut bytes)| {
            if is_measured(&bytes) {
                bytes.pop();
            }
            vec![(client, bytes)]
        });
        expect(workload, &output, "were sent,");
    }
}

#[test]
fn a_header_left_in_place_fails() {
    for workload in WORKLOADS {
        let output = load(workload, |(client, mut bytes)| {
            if is_measured(&bytes) {
                bytes.splice(..0, *b"\r\n\r\n\0\r\nQUIT\n");
            }
            vec![(client, bytes)]
        });
        expect(workload, &output, "that nobody sent");
    }
}

#[test]
fn a_repeated_datagram_fails() {
    for workload in WORKLOADS {
        let output = load(workload, |datagram| {
            if is_measured(&datagram.1) {
                vec![datagram.clone(), datagram]
            } else {
                vec![datagram]
            }
        });
        expect(workload, &output, "came twice");
    }
}

/// The balancer has one socket in `udp-echo-shared`, and answers on it can't go astray.
#[test]
fn a_datagram_that_goes_another_clients_way_fails() {
    for workload in ["udp-echo", "udp-echo-window", "udp-stream"] {
        let output = load(workload, |(client, bytes)| {
            let client = if is_measured(&bytes) {
                (client + 1) % CLIENTS
            } else {
                client
            };
            vec![(client, bytes)]
        });
        expect(workload, &output, "misdelivered");
    }
}

#[test]
fn lost_echoes_are_counted_and_do_not_stall() {
    for workload in ["udp-echo", "udp-echo-shared", "udp-echo-window"] {
        let mut count = 0;
        let output = load(workload, move |datagram| {
            count += usize::from(is_measured(&datagram.1));
            if count == 10 {
                return Vec::new();
            }
            vec![datagram]
        });
        passes(workload, &output);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            said.contains(r#"{"name":"lost","value":1.0}"#),
            "{workload}: {said}"
        );
    }
}

#[test]
fn lost_streams_are_counted() {
    let mut count = 0_u64;
    let output = load("udp-stream", move |datagram| {
        count += u64::from(is_measured(&datagram.1));
        if count.is_multiple_of(2) && is_measured(&datagram.1) {
            return Vec::new();
        }
        vec![datagram]
    });
    passes("udp-stream", &output);
    let said = String::from_utf8_lossy(&output.stdout);
    let (_, rest) = said.split_once(r#""lost %","value":"#).unwrap();
    let lost: f64 = rest.split('}').next().unwrap().parse().unwrap();
    assert!(
        (49.0..100.0).contains(&lost),
        "half were thrown away: {said}"
    );
}

#[test]
fn losing_everything_fails() {
    for (workload, words) in [
        ("udp-echo", "were lost"),
        ("udp-echo-shared", "were lost"),
        ("udp-echo-window", "were lost"),
        ("udp-stream", "nothing arrived"),
    ] {
        let output = load(workload, |datagram| {
            if is_measured(&datagram.1) {
                Vec::new()
            } else {
                vec![datagram]
            }
        });
        expect(workload, &output, words);
    }
}

#[test]
fn a_port_where_nobody_listens_fails() {
    let closed = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for workload in WORKLOADS {
        let output = generate(workload, closed, closed);
        expect(workload, &output, "Connection refused");
    }
}

const WORKLOADS: [&str; 4] = [
    "udp-echo",
    "udp-echo-shared",
    "udp-echo-window",
    "udp-stream",
];

const CLIENTS: usize = 3;

/// Clients ask whom the backend sees before anything is measured. That is left alone: faults are to be
/// found where only the workload itself can see them.
fn is_measured(datagram: &[u8]) -> bool {
    datagram.starts_with(b"ECHO") || datagram.starts_with(b"STRM")
}

/// Generator, a relay that does `spoil` to what it forwards, and a backend.
fn load(workload: &str, spoil: impl FnMut(Datagram) -> Vec<Datagram> + Send + 'static) -> Output {
    let backend = Backend::start();
    let relay = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = relay.local_addr().unwrap();
    let to = backend.address;
    thread::spawn(move || relay_with(&relay, to, spoil));
    generate(workload, target, backend.address)
}

fn generate(workload: &str, target: SocketAddr, backend: SocketAddr) -> Output {
    Command::new(env!("CARGO_BIN_EXE_peername-bench"))
        .args(["load", workload, "--target", &target.to_string()])
        .args(["--backend", &backend.to_string()])
        .args(["--connections", &CLIENTS.to_string(), "--for", "100ms"])
        .output()
        .unwrap()
}

/// Forwards by way of one socket for each client: by its tag, as the shared socket has no other sign.
/// Answers go back by the socket they come in at. Ends when nothing has come for a while.
fn relay_with(relay: &UdpSocket, to: SocketAddr, mut spoil: impl FnMut(Datagram) -> Vec<Datagram>) {
    relay.set_nonblocking(true).unwrap();
    let upstreams: Vec<UdpSocket> = (0..CLIENTS)
        .map(|_| {
            let upstream = UdpSocket::bind("127.0.0.1:0").unwrap();
            upstream.connect(to).unwrap();
            upstream.set_nonblocking(true).unwrap();
            upstream
        })
        .collect();
    let mut balancers = [None; CLIENTS];
    let mut buffer = [0; 2048];
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_secs(10) {
        let before = last;
        if let Ok((length, from)) = relay.recv_from(&mut buffer) {
            last = Instant::now();
            let client = client(&buffer[..length]);
            balancers[client] = Some(from);
            for (client, bytes) in spoil((client, buffer[..length].to_vec())) {
                let _ = upstreams[client].send(&bytes);
            }
        }
        for (upstream, balancer) in upstreams.iter().zip(balancers) {
            match upstream.recv(&mut buffer) {
                Ok(length) => {
                    last = Instant::now();
                    let _ = relay.send_to(&buffer[..length], balancer.unwrap());
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        if last == before {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Clients are numbered from 1; the number is in the last byte of four after the kind.
fn client(datagram: &[u8]) -> usize {
    usize::from(datagram[7]) - 1
}

/// The benchmark's own backend, ended with its guard.
struct Backend {
    child: Child,
    address: SocketAddr,
}

impl Backend {
    fn start() -> Self {
        // Another test may be faster to take the port.
        let started = (0..10).find_map(|_| Self::start_at(free_address()));
        started.expect("the backend listens")
    }

    /// `None` when it has ended.
    fn start_at(address: SocketAddr) -> Option<Self> {
        let child = Command::new(env!("CARGO_BIN_EXE_peername-bench"))
            .args(["backend", "--for", "1m", "--listen", &address.to_string()])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut backend = Self { child, address };
        let deadline = Instant::now() + Duration::from_secs(5);
        while std::net::TcpStream::connect(address).is_err() {
            if backend.child.try_wait().unwrap().is_some() {
                return None;
            }
            assert!(Instant::now() < deadline, "the backend does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        Some(backend)
    }
}

/// Free at this moment, for TCP and UDP alike as a rule.
fn free_address() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap()
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
