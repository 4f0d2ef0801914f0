//! The UDP workloads, with a faulty relay between the real generator and the real backend.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{assert_fails, assert_passes};

/// A datagram, and the number of the client that it is sent for.
type Datagram = (usize, Vec<u8>);

#[test]
fn correct_relay_passes() {
    for workload in WORKLOADS {
        let output = load(workload, |datagram| vec![datagram]);
        assert_passes(workload, &output);
    }
}

#[test]
fn flipped_bit_fails() {
    for workload in WORKLOADS {
        let output = load_altered(workload, |bytes| bytes[40] ^= 0x10);
        assert_fails(workload, &output, "byte 24 came back as");
    }
}

#[test]
fn truncated_datagram_fails() {
    for workload in WORKLOADS {
        let output = load_altered(workload, |bytes| {
            bytes.pop();
        });
        assert_fails(workload, &output, "were sent,");
    }
}

#[test]
fn header_that_is_not_stripped_fails() {
    for workload in WORKLOADS {
        let output = load_altered(workload, |bytes| {
            bytes.splice(..0, *b"\r\n\r\n\0\r\nQUIT\n");
        });
        assert_fails(workload, &output, "that were not sent");
    }
}

#[test]
fn repeated_datagram_fails() {
    for workload in WORKLOADS {
        let output = load(workload, |datagram| {
            if is_measured(&datagram.1) {
                vec![datagram.clone(), datagram]
            } else {
                vec![datagram]
            }
        });
        assert_fails(workload, &output, "came twice");
    }
}

/// Without `udp-echo-shared`: all its clients share one socket, so an echo can't be misdelivered.
#[test]
fn datagram_sent_through_another_clients_session_fails() {
    for workload in ["udp-echo", "udp-echo-window", "udp-stream"] {
        let output = load(workload, |(client, bytes)| {
            let client = if is_measured(&bytes) {
                (client + 1) % CLIENTS
            } else {
                client
            };
            vec![(client, bytes)]
        });
        assert_fails(workload, &output, "misdelivered");
    }
}

#[test]
fn lost_echoes_are_counted_and_do_not_stall_the_client() {
    for workload in ["udp-echo", "udp-echo-shared", "udp-echo-window"] {
        let mut count = 0;
        let output = load(workload, move |datagram| {
            count += usize::from(is_measured(&datagram.1));
            if count == 10 {
                return Vec::new();
            }
            vec![datagram]
        });
        assert_passes(workload, &output);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(
            stdout.contains(r#"{"name":"lost","value":1.0}"#),
            "{workload}: {stdout}"
        );
    }
}

#[test]
fn lost_stream_datagrams_are_counted() {
    let mut count = 0_u64;
    let output = load("udp-stream", move |datagram| {
        count += u64::from(is_measured(&datagram.1));
        if count.is_multiple_of(2) && is_measured(&datagram.1) {
            return Vec::new();
        }
        vec![datagram]
    });
    assert_passes("udp-stream", &output);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let (_, rest) = stdout.split_once(r#""lost %","value":"#).unwrap();
    let lost: f64 = rest.split('}').next().unwrap().parse().unwrap();
    assert!((49.0..100.0).contains(&lost), "half were dropped: {stdout}");
}

#[test]
fn total_loss_fails() {
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
        assert_fails(workload, &output, words);
    }
}

#[test]
fn closed_port_fails() {
    let closed = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for workload in WORKLOADS {
        let output = generate(workload, closed, closed);
        assert_fails(workload, &output, "Connection refused");
    }
}

const WORKLOADS: [&str; 4] = [
    "udp-echo",
    "udp-echo-shared",
    "udp-echo-window",
    "udp-stream",
];

const CLIENTS: usize = 3;

/// Whether a datagram belongs to the measured interval. The relay leaves the queries before it unaltered, so that only the
/// workload itself can detect the faults.
fn is_measured(datagram: &[u8]) -> bool {
    datagram.starts_with(b"ECHO") || datagram.starts_with(b"STRM")
}

/// Runs the generator through a relay that alters datagrams by `spoil`, with a real backend.
fn load(workload: &str, spoil: impl FnMut(Datagram) -> Vec<Datagram> + Send + 'static) -> Output {
    let backend = Backend::start();
    let relay = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = relay.local_addr().unwrap();
    let address = backend.address;
    thread::spawn(move || relay_with(&relay, address, spoil));
    generate(workload, target, address)
}

/// As [`load`]: `alter` changes each datagram of the measured interval.
fn load_altered(workload: &str, alter: fn(&mut Vec<u8>)) -> Output {
    load(workload, move |(client, mut bytes)| {
        if is_measured(&bytes) {
            alter(&mut bytes);
        }
        vec![(client, bytes)]
    })
}

fn generate(workload: &str, target: SocketAddr, backend: SocketAddr) -> Output {
    Command::new(env!("CARGO_BIN_EXE_peername-bench"))
        .args(["load", workload, "--target", &target.to_string()])
        .args(["--backend", &backend.to_string()])
        .args(["--connections", &CLIENTS.to_string(), "--for", "100ms"])
        .output()
        .unwrap()
}

/// Forwards through one socket for each client. The serial number in the datagram's tag (`wire/datagram.rs`) identifies the
/// client: if clients share a socket, their datagrams come from the same address. A reply goes to the address from which the
/// client's last datagram came. Ends when nothing has arrived for 10 s.
fn relay_with(
    relay: &UdpSocket,
    backend: SocketAddr,
    mut spoil: impl FnMut(Datagram) -> Vec<Datagram>,
) {
    relay.set_nonblocking(true).unwrap();
    let upstreams: Vec<UdpSocket> = (0..CLIENTS)
        .map(|_| {
            let upstream = UdpSocket::bind("127.0.0.1:0").unwrap();
            upstream.connect(backend).unwrap();
            upstream.set_nonblocking(true).unwrap();
            upstream
        })
        .collect();
    let mut balancers = [None; CLIENTS];
    let mut buffer = [0; 2048];
    let mut last_arrival = Instant::now();
    while last_arrival.elapsed() < Duration::from_secs(10) {
        let before = last_arrival;
        if let Ok((length, from)) = relay.recv_from(&mut buffer) {
            last_arrival = Instant::now();
            let client = client_index(&buffer[..length]);
            balancers[client] = Some(from);
            for (client, bytes) in spoil((client, buffer[..length].to_vec())) {
                let _ = upstreams[client].send(&bytes);
            }
        }
        for (upstream, balancer) in upstreams.iter().zip(balancers) {
            match upstream.recv(&mut buffer) {
                Ok(length) => {
                    last_arrival = Instant::now();
                    let _ = relay.send_to(&buffer[..length], balancer.unwrap());
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        if last_arrival == before {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

/// The index of the client of a datagram: its serial number in the tag less 1. The serial number is big-endian, in the four
/// bytes after the kind; there are few clients, so the last of these bytes is enough.
fn client_index(datagram: &[u8]) -> usize {
    usize::from(datagram[7]) - 1
}

/// The benchmark's own backend, killed on drop.
struct Backend {
    child: Child,
    address: SocketAddr,
}

impl Backend {
    fn start() -> Self {
        // Another test may take the port first.
        (0..10)
            .find_map(|_| Self::start_at(free_address()))
            .expect("the backend listens")
    }

    /// `None` if the backend exits, as the port was taken.
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

/// An address that is free at this moment, as a rule for both TCP and UDP.
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
