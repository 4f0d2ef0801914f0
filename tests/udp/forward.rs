//! `forward` in front of `proxy`, without another balancer.

mod dns;
mod iperf;
mod quic;

use std::net::SocketAddr;

use crate::harness::addr::{
    CLIENT_V4, CLIENT_V6, FRONT_V4, FRONT_V6, LISTEN_V4, TARGET_V4, TARGET_V6,
};
use crate::harness::admin::{ADMIN, wait_metric};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::Lab;
use crate::harness::peername::{PROXY_ARGS, Peername, words};
use crate::harness::rig::udp::start_forward;

#[test]
fn forward_and_proxy_carry_datagrams() {
    for (sender, receiver) in [
        (
            "--udp-header=each --crc32c --tlv=authority=a.example",
            "each",
        ),
        ("--udp-header=first", "first"),
        ("--proxy-version=spp", "spp"),
    ] {
        let lab = Lab::new();
        let backends = [TARGET_V4, TARGET_V6].map(|addr| DatagramSocket::bind(&lab.server, addr));
        let _proxy = Peername::udp_proxy(&lab, &[], &[&format!("--udp-header={receiver}")]);
        let _forward = start_forward(&lab, &words(sender));
        let fronts = [(CLIENT_V4, FRONT_V4), (CLIENT_V6, FRONT_V6)];
        for ((from, front), backend) in fronts.into_iter().zip(&backends) {
            let client = DatagramSocket::bind(&lab.client, from);
            for round in 0..5_u8 {
                client.send(front, &[b"ask", &[round]]);
                backend.expect_datagram(&[b'a', b's', b'k', round], from);
                backend.send(from, &[b"answer", &[round]]);
                client.expect_datagram(&[b"answer", &[round][..]].concat(), front);
            }
            client.send(front, &[]);
            backend.expect_datagram(b"", from);
            backend.send(from, &[]);
            client.expect_datagram(b"", front);
        }
    }
}

/// There are more sessions than ports towards the backend. Each gets an answer, and no outage of the backend is logged. The
/// host that has most of them loses its own sessions only.
#[test]
fn session_is_evicted_for_a_port() {
    let lab = Lab::new();
    let ports = "net.ipv4.ip_local_port_range";
    lab.balancer.sysctl(ports, "40000 40007");
    let backend = DatagramSocket::bind(&lab.server, "10.81.0.1:7000".parse().unwrap());
    let args =
        words("forward --protocol=udp --listen=203.0.113.1:80 --to=10.81.0.1:7000 --workers=1");
    let forward = Peername::start_listening(&lab.balancer, &[&args[..], &[ADMIN]].concat());
    lab.client
        .add_addresses("eth0", &["203.0.113.10/24", "203.0.113.11/24"]);
    let other = bind(&lab, "203.0.113.11", 7000);
    let before = ask(&other, FRONT_V4, &backend);
    for port in 7000..7030 {
        ask(&bind(&lab, "203.0.113.10", port), FRONT_V4, &backend);
    }
    let after = ask(&other, FRONT_V4, &backend);
    assert_eq!(after, before, "a session of its own still");
    forward.wait_logged("widen net.ipv4.ip_local_port_range");
    // 30 sessions, and 7 ports that the other host leaves.
    let count = "peername_udp_evictions_total{reason=\"ports\"} 23";
    wait_metric(&lab.balancer, &[], count);
    let log = forward.log();
    for wrong in ["accepts no clients", "raise --max-sessions"] {
        assert!(!log.contains(wrong), "{log}");
    }
}

/// One host, by its ports or by the addresses of its IPv6 /64, evicts its own sessions only, however few there may be in all.
#[test]
fn client_with_many_sessions_evicts_its_own() {
    let lab = Lab::new();
    lab.client
        .add_addresses("eth0", &["203.0.113.10/24", "203.0.113.11/24"]);
    lab.client.add_addresses(
        "eth0",
        &["2001:db8:a::9/64", "2001:db8:9::10/64", "2001:db8:9::11/64"],
    );
    lab.balancer.add_addresses("wan", &["2001:db8:a::1/64"]);
    let backend = DatagramSocket::bind(&lab.server, LISTEN_V4);
    for (front, other, greedy) in [
        (FRONT_V4, "203.0.113.11", &["203.0.113.10"][..]),
        (
            FRONT_V6,
            "2001:db8:a::9",
            &["2001:db8:9::10", "2001:db8:9::11"],
        ),
    ] {
        let options = ["--max-sessions=30", "--workers=1", ADMIN];
        let _forward = start_forward(&lab, &options);
        let other = bind(&lab, other, 7000);
        let before = ask(&other, front, &backend);
        for port in 7000..7040 {
            for ip in greedy {
                ask(&bind(&lab, ip, port), front, &backend);
            }
        }
        let after = ask(&other, front, &backend);
        assert_eq!(after, before, "a session of its own still");
        // All but the first 20, two thirds of 30.
        let evicted = 40 * greedy.len() - 20;
        let line = format!("peername_udp_evictions_total{{reason=\"balancer_limit\"}} {evicted}");
        wait_metric(&lab.balancer, &[], &line);
    }
}

fn bind(lab: &Lab, ip: &str, port: u16) -> DatagramSocket {
    let ip = ip.parse().expect("an address");
    DatagramSocket::bind(&lab.client, SocketAddr::new(ip, port))
}

/// Sends a request that the backend answers. Returns the address from which the backend received it.
fn ask(client: &DatagramSocket, front: SocketAddr, backend: &DatagramSocket) -> SocketAddr {
    client.send(front, &[b"ask"]);
    let (_, from) = backend.recv();
    backend.send(from, &[b"answer"]);
    client.expect_datagram(b"answer", front);
    from
}

/// Over TCP no connection is evicted for its port, so a client is refused. The log does not report that as an outage of the
/// backend.
#[test]
fn connection_without_a_port_is_not_blamed_on_the_backend() {
    let lab = Lab::new();
    lab.balancer
        .sysctl("net.ipv4.ip_local_port_range", "40000 40007");
    let address = "10.81.0.1:7000".parse().unwrap();
    let backend = Backend::listen(&lab.server, address);
    // The client has one port, so it opens a connection to each of several listeners.
    let listen: Vec<_> = (80..89)
        .map(|port| SocketAddr::new(FRONT_V4.ip(), port))
        .collect();
    let options: Vec<_> = listen.iter().map(|to| format!("--listen={to}")).collect();
    let mut args = vec!["forward", "--to=10.81.0.1:7000"];
    args.extend(options.iter().map(String::as_str));
    let forward = Peername::start(&lab.balancer, &args, &listen);
    let open: Vec<_> = listen[..8]
        .iter()
        .map(|&to| (Conn::connect(&lab.client, to), backend.accept()))
        .collect();
    Conn::assert_refused(&lab.client, listen[8]);
    forward.wait_logged("widen net.ipv4.ip_local_port_range");
    assert!(!forward.log().contains("accepts no clients"));
    drop(open);
}

/// For a service over both transports, such as DNS.
#[test]
fn forward_and_proxy_carry_both_transports() {
    let lab = Lab::new();
    let datagrams = DatagramSocket::bind(&lab.server, TARGET_V4);
    let connections = Backend::listen(&lab.server, TARGET_V4);
    let _proxy =
        Peername::start_listening(&lab.server, &[PROXY_ARGS, &["--protocol=both"]].concat());
    let args = words("forward --protocol=both --listen=203.0.113.1:80 --to=10.81.0.1:8443");
    let _forward = Peername::start_listening(&lab.balancer, &args);
    let client = DatagramSocket::bind(&lab.client, CLIENT_V4);
    client.send(FRONT_V4, &[b"ask"]);
    datagrams.expect_datagram(b"ask", CLIENT_V4);
    let down = Conn::connect_and_send(&lab.client, FRONT_V4, b"ask");
    let up = connections.accept();
    assert_eq!(up.peer_addr(), down.local_addr());
    assert_eq!(up.recv(3), b"ask");
    for version in ["1", "spp"] {
        let args = [&args[..], &["--proxy-version", version]].concat();
        let output = Peername::run(&lab.balancer, &args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

/// With the Simple Proxy Protocol, a backend that does not return the header has not understood it.
#[test]
fn spp_reply_without_its_header_is_dropped() {
    let lab = Lab::new();
    let receiver = DatagramSocket::bind(&lab.server, "10.81.0.1:7000".parse().unwrap());
    let args = words(
        "forward --protocol=udp --listen=203.0.113.1:80 --to=10.81.0.1:7000 \
         --proxy-version=spp",
    );
    let _forward = Peername::start_listening(&lab.balancer, &args);
    let client = DatagramSocket::bind(&lab.client, CLIENT_V4);
    client.send(FRONT_V4, &[b"ask"]);
    let (bytes, from) = receiver.recv();
    let header = header_bytes::spp(CLIENT_V4, FRONT_V4);
    assert_eq!(bytes, [&header[..], b"ask"].concat());
    receiver.send(from, &[b"bare answer"]);
    client.assert_silent();
    receiver.send(from, &[&bytes]);
    client.expect_datagram(b"ask", FRONT_V4);
}
