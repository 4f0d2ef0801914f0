//! Trust and claimed sources over UDP.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::addr::{CLIENT_V4, LISTEN_V4, fresh_client_v4, fresh_client_v6, v4};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::wait_for;
use crate::harness::rig::proxy::front_of;
use crate::harness::rig::udp::{UdpRig, datagram_header_for};
use crate::harness::special_sources::{
    IMPOSSIBLE, LOOPBACK_ADDRESSES, SERVER_ADDRESSES, SUBNET_ENDS,
};

/// A datagram from a host outside `--trust` is dropped, even with a valid header.
#[test]
fn untrusted_sender_is_dropped() {
    let mut rig = UdpRig::new(&[]);
    rig.lab.balancer.sysctl("net.ipv4.ip_forward", "1");
    rig.lab.client.ip("route add 10.81.0.0/24 via 203.0.113.1");
    rig.lab.server.ip("route add 203.0.113.0/24 via 10.81.0.2");
    let untrusted = DatagramSocket::bind(&rig.lab.client, SocketAddr::new(CLIENT_V4.ip(), 0));
    for _ in 0..3 {
        untrusted.send(
            LISTEN_V4,
            &[&datagram_header_for(fresh_client_v4()), b"hello"],
        );
    }
    rig.round_trip(fresh_client_v4());
    assert_eq!(rig.stop_and_count_drops().get("untrusted_peer"), Some(&3));
}

/// No backend gets a datagram from a client that can't exist or that is this host.
#[test]
fn special_sources_are_dropped() {
    let mut rig = UdpRig::new(&[]);
    let refused: Vec<&str> = [
        IMPOSSIBLE,
        SUBNET_ENDS,
        LOOPBACK_ADDRESSES,
        SERVER_ADDRESSES,
    ]
    .concat();
    for ip in &refused {
        let client = SocketAddr::new(ip.parse::<IpAddr>().expect("an address"), 40010);
        rig.send_from_balancer(&[&datagram_header_for(client), ip.as_bytes()]);
    }
    rig.round_trip(fresh_client_v4());
    rig.round_trip(fresh_client_v6());
    let dropped = rig.stop_and_count_drops();
    let refusals: u64 = dropped
        .iter()
        .filter(|(reason, _)| reason.starts_with("source_"))
        .map(|(_, count)| count)
        .sum();
    assert_eq!(refusals, refused.len() as u64, "{dropped:?}");
}

/// An IPv4-mapped IPv6 source is the same client as the IPv4 one.
#[test]
fn ipv4_mapped_source_is_the_same_client() {
    let mut rig = UdpRig::new(&[]);
    let client = fresh_client_v4();
    let mapped = |addr: SocketAddr| match addr.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), addr.port()),
        IpAddr::V6(_) => addr,
    };
    for _ in 0..4 {
        let header = header_bytes::v2_udp(mapped(client), mapped(front_of(client)));
        rig.assert_delivered(&header, b"mapped", client);
        rig.round_trip(client);
    }
    assert_eq!(rig.stop()["port_collisions"], 0);
}

/// Two balancers with the same live client: both get replies. The second session has the client's address and another port.
#[test]
fn second_balancer_gets_another_port() {
    let mut rig = UdpRig::new(&["--on-port-collision=ephemeral"]);
    rig.lab.balancer.ip("address add 10.81.0.3/24 dev lan");
    let second = DatagramSocket::bind(&rig.lab.balancer, v4([10, 81, 0, 3], 0));
    let client = fresh_client_v4();
    rig.round_trip(client);
    second.send(LISTEN_V4, &[&datagram_header_for(client), b"two"]);
    let (bytes, from) = rig.backend_v4.recv();
    assert_eq!((&bytes[..], from.ip()), (&b"two"[..], client.ip()));
    assert_ne!(from.port(), client.port());
    rig.backend_v4.send(from, &[b"to two"]);
    rig.backend_v4.send(client, &[b"to one"]);
    second.expect_datagram(b"to two", LISTEN_V4);
    rig.balancer.expect_datagram(b"to one", LISTEN_V4);
    rig.round_trip(client);
    assert_eq!(rig.stop()["port_collisions"], 1);
}

/// A client's datagrams that queue at the suspended proxy reach the server in the order in which each balancer has sent them.
#[test]
fn order_of_each_of_two_balancers_is_kept() {
    let rig = UdpRig::new(&["--workers=1"]);
    rig.lab.balancer.ip("address add 10.81.0.3/24 dev lan");
    let second = DatagramSocket::bind(&rig.lab.balancer, v4([10, 81, 0, 3], 0));
    let client = fresh_client_v4();
    let header = datagram_header_for(client);
    rig.round_trip(client);
    rig.proxy.suspend();
    for round in 0..20_u8 {
        rig.send_from_balancer(&[&header, &[1, round]]);
        second.send(LISTEN_V4, &[&header, &[2, round]]);
    }
    rig.proxy.signal(Signal::CONT);
    let all: Vec<_> = (0..40).map(|_| rig.backend_v4.recv().0).collect();
    for balancer in [1, 2] {
        let rounds: Vec<_> = all
            .iter()
            .filter(|bytes| bytes[0] == balancer)
            .map(|bytes| bytes[1])
            .collect();
        assert_eq!(rounds, (0..20).collect::<Vec<_>>(), "{all:?}");
    }
}

/// With `--on-port-collision=fail`, the second session is refused, because it can't have the client's port.
#[test]
fn second_balancer_is_refused_on_request() {
    let mut rig = UdpRig::new(&["--on-port-collision=fail"]);
    rig.lab.balancer.ip("address add 10.81.0.3/24 dev lan");
    let second = DatagramSocket::bind(&rig.lab.balancer, v4([10, 81, 0, 3], 0));
    let client = fresh_client_v4();
    rig.round_trip(client);
    second.send(LISTEN_V4, &[&datagram_header_for(client), b"two"]);
    rig.backend_v4.assert_silent();
    rig.round_trip(client);
    assert_eq!(rig.stop_and_count_drops().get("port_taken"), Some(&1));
}

/// Another program that is bound to the client's address and port keeps them, even if it allows sharing (SO_REUSEADDR,
/// SO_REUSEPORT). The session gets another port, so neither receives the replies of the other.
#[test]
fn foreign_socket_on_the_clients_endpoint_is_a_collision() {
    let mut rig = UdpRig::new(&[]);
    let client = fresh_client_v4();
    rig.lab.server.ip("address add 198.51.100.7/32 dev lo");
    let foreign = rig.lab.server.enter(|| {
        use socket2::{Domain, Socket, Type};
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
        socket.set_reuse_address(true).expect("SO_REUSEADDR");
        socket.set_reuse_port(true).expect("SO_REUSEPORT");
        socket.bind(&client.into()).expect("bind");
        socket
    });
    rig.lab.server.ip("address del 198.51.100.7/32 dev lo");
    wait_for("the client is served from another port", || {
        rig.send_from_balancer(&[&datagram_header_for(client), b"ping"]);
        rig.backend_v4
            .recv_within(Duration::from_millis(50))
            .map(|(_, from)| assert_ne!(from.port(), client.port()))
    });
    assert_eq!(rig.stop()["port_collisions"], 1);
    drop(foreign);
}
