//! go-mmproxy's own test suite, each case once, against this binary under its name: `TestListenTCP*`, `TestListenUDP*`,
//! `TestProxyProtocol*` as bytes on the wire, and `tproxy.sh`.
//!
//! One case ends differently here: `*_DynamicDestination` names a destination on loopback, which is refused
//! ([`many_ports`](super::many_ports) has those that are served).

use std::net::SocketAddr;

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::conn::{Conn, End};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{Host, Lab, Process};
use crate::harness::rig::compat::{CompatRig, ROUTES, ROUTES_V6, wait_listening};

/// The client of the suite's headers.
const CLIENT: SocketAddr = v4([192, 168, 0, 1], 56324);
/// The destination of its headers.
const NAMED: SocketAddr = v4([192, 168, 0, 11], 443);
const LISTEN: SocketAddr = v4([127, 0, 0, 1], 12345);
const TARGET: SocketAddr = v4([127, 0, 0, 1], 54321);

/// The result of a connection or datagram with such a header.
enum Expected {
    /// The backend gets `moredata` from this client's address.
    From(SocketAddr),
    /// The backend gets `moredata` from the proxy's own address.
    FromProxy,
    /// Nothing reaches the backend.
    Refused,
}

use Expected::{From, FromProxy, Refused};

/// A host with its routes, and go-mmproxy with these options.
fn start(rig: &CompatRig, protocol: &str, options: &str) -> (Host, Process) {
    let host = Host::new();
    host.ip(ROUTES);
    host.ip6(ROUTES_V6);
    let command = format!(
        "go-mmproxy -p {protocol} -l 0.0.0.0:12345 -4 127.0.0.1:54321 -6 [::1]:54321 {options}"
    );
    let proxy = rig.start(&host, &command);
    wait_listening(&proxy);
    (host, proxy)
}

#[test]
fn every_tcp_header_has_its_result() {
    let rig = CompatRig::new();
    let (host, _proxy) = start(&rig, "tcp", "");
    let backend = Backend::listen(&host, TARGET);
    let table: [(&str, Vec<u8>, Expected); 6] = [
        (
            "TestListenTCP, TestProxyProtocolV1",
            header_bytes::v1(CLIENT, NAMED),
            From(CLIENT),
        ),
        (
            "TestListenTCP_proxyV2, TestProxyProtocolV2",
            header_bytes::v2(CLIENT, NAMED, &[]),
            From(CLIENT),
        ),
        (
            "TestListenTCP_unknown, TestProxyProtocolV1_Unknown",
            b"PROXY UNKNOWN\r\n".to_vec(),
            FromProxy,
        ),
        (
            "TestProxyProtocolV1_UnknownWithAddrs",
            b"PROXY UNKNOWN ffff::1 ffff::1 1234 1234\r\n".to_vec(),
            FromProxy,
        ),
        (
            "TestProxyProtocolV1_nontcp",
            b"PROXY UDP4 192.168.0.1 192.168.0.11 56324 443\r\n".to_vec(),
            Refused,
        ),
        // Not in the suite, but what its cases guard against: bytes that are no header.
        ("no header", b"GET / HTTP/1.1\r\n\r\n".to_vec(), Refused),
    ];
    for (name, header, expected) in table {
        let down = Conn::connect_and_send(&host, LISTEN, &[&header[..], b"moredata"].concat());
        if let Refused = expected {
            down.wait_closed();
            backend.assert_no_connection();
            continue;
        }
        let up = backend.accept();
        assert_eq!(up.recv(8), b"moredata", "{name}");
        match expected {
            From(client) => assert_eq!(up.peer_addr(), client, "{name}"),
            _ => assert!(
                up.peer_addr().ip().is_loopback(),
                "{name}: {}",
                up.peer_addr()
            ),
        }
        // RST, so that the port is free for the next case.
        up.reset();
        down.wait_closed();
    }
}

/// `TestListenTCP_HalfClose`: the backend answers once more after the client's half-close.
#[test]
fn tcp_half_close_keeps_the_other_direction() {
    let rig = CompatRig::new();
    let (host, _proxy) = start(&rig, "tcp", "");
    let backend = Backend::listen(&host, TARGET);
    let down = Conn::connect_and_send(
        &host,
        LISTEN,
        &[&header_bytes::v2(CLIENT, NAMED, &[])[..], b"moredata"].concat(),
    );
    let up = backend.accept();
    assert_eq!(up.recv(8), b"moredata");
    up.send(b"response: moredata");
    assert_eq!(down.recv(18), b"response: moredata");
    down.shutdown_write();
    assert_eq!(up.recv_to_end(), (Vec::new(), End::Fin));
    up.send(b"response: ");
    assert_eq!(down.recv(10), b"response: ");
    up.shutdown_write();
    assert_eq!(down.recv_to_end(), (Vec::new(), End::Fin));
}

#[test]
fn every_udp_header_has_its_result() {
    let rig = CompatRig::new();
    let (host, _proxy) = start(&rig, "udp", "");
    let v6: SocketAddr = "[::1]:54321".parse().expect("an address");
    let backends = (
        DatagramSocket::bind(&host, TARGET),
        DatagramSocket::bind(&host, v6),
    );
    let client_v6: SocketAddr = "[2001:db8::1]:56324".parse().expect("an address");
    let named_v6: SocketAddr = "[2001:db8::2]:443".parse().expect("an address");
    for (name, client, named) in [
        ("TestListenUDP", CLIENT, NAMED),
        ("TestProxyProtocolV2_udp6", client_v6, named_v6),
    ] {
        let balancer = DatagramSocket::bind(&host, v4([127, 0, 0, 1], 0));
        balancer.send(LISTEN, &[&header_bytes::v2_udp(client, named), b"moredata"]);
        let backend = if client.is_ipv4() {
            &backends.0
        } else {
            &backends.1
        };
        assert_eq!(backend.recv(), (b"moredata".to_vec(), client), "{name}");
    }
}

/// `TestListenTCP_DynamicDestination` and `TestListenUDP_DynamicDestination`, with the destination of that suite: a
/// port on loopback. It is refused: services on loopback trust every peer that reaches them, and here any peer may send
/// headers.
#[test]
fn dynamic_destinations_on_loopback_are_refused() {
    let rig = CompatRig::new();
    let named = v4([127, 0, 0, 1], 55443);
    let (host, proxy) = start(&rig, "tcp", "-dynamic-destination");
    let (backend, target) = (
        Backend::listen(&host, named),
        Backend::listen(&host, TARGET),
    );
    Conn::connect_and_send(
        &host,
        LISTEN,
        &[&header_bytes::v1(CLIENT, named)[..], b"moredata"].concat(),
    )
    .wait_closed();
    backend.assert_no_connection();
    // The fixed target is allowed, although it is on loopback.
    let _down = Conn::connect_and_send(&host, LISTEN, &header_bytes::v1(CLIENT, TARGET));
    assert_eq!(target.accept().peer_addr(), CLIENT);
    proxy.wait_logged("-dynamic-destination now refuses");

    let (host, _proxy) = start(&rig, "udp", "-dynamic-destination");
    let (backend, target) = (
        DatagramSocket::bind(&host, named),
        DatagramSocket::bind(&host, TARGET),
    );
    let balancer = DatagramSocket::bind(&host, v4([127, 0, 0, 1], 0));
    balancer.send(LISTEN, &[&header_bytes::v2_udp(CLIENT, named), b"moredata"]);
    balancer.send(
        LISTEN,
        &[&header_bytes::v2_udp(CLIENT, TARGET), b"moredata"],
    );
    assert_eq!(target.recv(), (b"moredata".to_vec(), CLIENT));
    backend.assert_silent();
}

/// `tproxy.sh`: a container's entrypoint, then every port of a range from another host, answered by an echo
/// server.
#[test]
fn tproxy_script_works() {
    let (rig, lab) = (CompatRig::new(), Lab::without_routes());
    let backend = Backend::listen(&lab.server, v4([127, 0, 0, 1], 25578));
    let proxy = rig.start(
        &lab.server,
        "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet
         ip rule add from 127.0.0.1/8 iif lo table 123 || true
         ip route add local 0.0.0.0/0 dev lo table 123 || true
         ip rule add fwmark 1 lookup 123 || true
         iptables -t mangle -F || true
         iptables -t mangle -A PREROUTING -p tcp --dport 10000:10004 -j TPROXY \
           --tproxy-mark 1/1 --on-port 25577 --on-ip 127.0.0.1
         go-mmproxy -l 0.0.0.0:25577 -4 127.0.0.1:25578 -6 [::1]:25578 -listen-transparent -p tcp -v 2",
    );
    wait_listening(&proxy);
    for port in 10_000..=10_004 {
        let message = format!("PING-{port}\r\n");
        let header = b"PROXY TCP4 127.0.0.1 127.0.0.1 12345 25578\r\n";
        let front = v4([10, 81, 0, 1], port);
        let down = Conn::connect_and_send(
            &lab.balancer,
            front,
            &[&header[..], message.as_bytes()].concat(),
        );
        let up = backend.accept();
        assert_eq!(up.peer_addr(), v4([127, 0, 0, 1], 12345), "port {port}");
        up.send(&up.recv(message.len()));
        assert_eq!(down.recv(message.len()), message.as_bytes(), "port {port}");
        up.reset();
        down.wait_closed();
    }
}
