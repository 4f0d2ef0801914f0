//! Servers of a few lines in Python, in JavaScript and by socat: each sends a client the address of its connection.

use std::net::SocketAddr;

use super::Server;
use crate::harness::addr::{TARGET_V4, TARGET_V6};
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Process};

/// Python's `socketserver`, one thread per connection.
#[derive(Debug)]
pub(crate) struct Python(Process);

/// Node's `net` server.
#[derive(Debug)]
pub(crate) struct Node(Process);

/// socat, which passes the address to the program it runs.
#[derive(Debug)]
pub(crate) struct Socat([Process; 2]);

impl Server for Python {
    fn start(host: &Host) -> Self {
        let process = Process::start(host, "/usr/bin/python3", &["-uc", PYTHON]);
        Self(process.wait_listening(&[TARGET_V4, TARGET_V6]))
    }

    fn reported_client(&self, client: &Host, front: SocketAddr) -> SocketAddr {
        reported_client(client, front, &self.0)
    }
}

impl Server for Node {
    fn start(host: &Host) -> Self {
        let process = Process::start(host, "node", &["-e", NODE]);
        Self(process.wait_listening(&[TARGET_V4, TARGET_V6]))
    }

    fn reported_client(&self, client: &Host, front: SocketAddr) -> SocketAddr {
        reported_client(client, front, &self.0)
    }
}

impl Server for Socat {
    fn start(host: &Host) -> Self {
        let listen = |address: &str, target| {
            let listen = format!("{address},reuseaddr,fork");
            let answer = "SYSTEM:echo $SOCAT_PEERADDR $SOCAT_PEERPORT";
            Process::start_in_pid_namespace(host, "socat", &[&listen, answer])
                .wait_listening(&[target])
        };
        Self([
            listen("TCP4-LISTEN:9000,bind=127.0.0.1", TARGET_V4),
            listen("TCP6-LISTEN:9000,bind=[::1]", TARGET_V6),
        ])
    }

    fn reported_client(&self, client: &Host, front: SocketAddr) -> SocketAddr {
        reported_client(client, front, &self.0[usize::from(front.is_ipv6())])
    }
}

fn reported_client(client: &Host, front: SocketAddr, server: &Process) -> SocketAddr {
    let (answer, _) = Conn::connect(client, front).recv_to_end();
    let answer = String::from_utf8(answer).expect("text");
    // socat writes an IPv6 address in brackets and in full.
    let parse = |(ip, port): (&str, &str)| {
        let ip = ip.trim_matches(['[', ']']).parse().ok()?;
        Some(SocketAddr::new(ip, port.parse().ok()?))
    };
    answer
        .trim()
        .split_once(' ')
        .and_then(parse)
        .unwrap_or_else(|| panic!("an address and a port, not {answer:?}\n{}", server.log()))
}

const PYTHON: &str = include_str!("script/python.py");

const NODE: &str = r#"
const hello = socket => socket.end(`${socket.remoteAddress} ${socket.remotePort}\n`);
for (const host of ["127.0.0.1", "::1"])
    require("net").createServer(hello).listen({ host, port: 9000 });
"#;
