//! udppp: its README's commands.

use std::net::SocketAddr;

use crate::harness::addr::{fresh_client_v4, v4};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{Host, Lab};
use crate::harness::rig::compat::{CompatRig, ROUTES, start_address_echo, wait_listening};

/// The README's first command: every datagram gets a header, and replies come back without one.
#[test]
fn readme_command_of_the_proxy_server_works() {
    let (rig, lab) = (CompatRig::new(), Lab::without_routes());
    lab.balancer.add_addresses("lan", &["192.168.0.1/24"]);
    lab.server.add_addresses("eth0", &["192.168.0.2/24"]);
    let upstream = DatagramSocket::bind(&lab.server, v4([192, 168, 0, 2], 8001));
    let sender = rig.start(
        &lab.balancer,
        "./udppp -m 1 -b 0.0.0.0 -l 8000 -h 192.168.0.2 -r 8001 -p",
    );
    wait_listening(&sender);
    let front = v4([203, 0, 113, 1], 8000);
    let client = DatagramSocket::bind(&lab.client, v4([203, 0, 113, 9], 0));
    let me = client.socket().local_addr().expect("getsockname");
    for _ in 0..2 {
        client.send(front, &[b"ping"]);
        let (bytes, from) = upstream.recv();
        assert_eq!(
            bytes,
            [&header_bytes::v2_udp(me, front)[..], b"ping"].concat()
        );
        upstream.send(from, &[b"pong"]);
        client.expect_datagram(b"pong", front);
    }
}

/// Without `-p` it forwards datagrams unchanged.
#[test]
fn without_p_datagrams_are_unchanged() {
    let (rig, host) = (CompatRig::new(), Host::new());
    let upstream = DatagramSocket::bind(&host, v4([127, 0, 0, 1], 8001));
    let sender = rig.start(
        &host,
        "./udppp -m1 -l8000 --host=127.0.0.1 --remote-port 8001",
    );
    wait_listening(&sender);
    let client = DatagramSocket::bind(&host, v4([127, 0, 0, 1], 0));
    client.send(v4([127, 0, 0, 1], 8000), &[b"ping"]);
    let (bytes, from) = upstream.recv();
    assert_eq!(bytes, b"ping");
    upstream.send(from, &[b"pong"]);
    client.expect_datagram(b"pong", v4([127, 0, 0, 1], 8000));
}

/// The README's last command: the server sees the client's address, with another port than the client's.
#[test]
fn readme_command_of_the_upstream_server_works() {
    let (rig, host) = (CompatRig::new(), Host::new());
    host.ip(ROUTES);
    let server = start_address_echo(&host, v4([127, 0, 0, 1], 8001));
    let proxy = rig.start(
        &host,
        "./udppp -m 2 -b 0.0.0.0 -l 8000 -h 127.0.0.1 -r 8001 -p",
    );
    wait_listening(&proxy);
    let front = v4([127, 0, 0, 1], 8000);
    let balancer = DatagramSocket::bind(&host, v4([127, 0, 0, 1], 0));
    // udppp confused two clients behind one socket of the balancer.
    for client in [fresh_client_v4(), v4([198, 51, 100, 8], 7)] {
        balancer.send(front, &[&header_bytes::v2_udp(client, front), b"ping"]);
        let (answer, _) = balancer.recv();
        let seen = parse_client(&answer);
        assert_eq!(seen.ip(), client.ip());
        assert_ne!(seen.port(), client.port());
    }
    // In udppp, an invalid datagram or a stopped server ended the process or one of its tasks.
    balancer.send(front, &[b"no header"]);
    drop(server);
    let client = fresh_client_v4();
    for _ in 0..3 {
        balancer.send(front, &[&header_bytes::v2_udp(client, front), b"ping"]);
    }
    let _server = start_address_echo(&host, v4([127, 0, 0, 1], 8001));
    balancer.send(front, &[&header_bytes::v2_udp(client, front), b"ping"]);
    assert_eq!(parse_client(&balancer.recv().0).ip(), client.ip());
}

/// Parses the client's address and port, with which the echo server's answer begins.
fn parse_client(answer: &[u8]) -> SocketAddr {
    let text = String::from_utf8_lossy(answer);
    let mut words = text.split(' ');
    crate::harness::addr::from_parts(
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    )
    .unwrap_or_else(|| panic!("{text}"))
}
