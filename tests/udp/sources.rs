//! Whose header is believed, and which clients it may name.

use std::net::{IpAddr, SocketAddr};

use crate::harness::addr::{CLIENT_V4, LISTEN_V4, someone_v4, v4};
use crate::harness::datagram::Datagrams;
use crate::harness::header_bytes;
use crate::harness::rig::proxy::front_of;
use crate::harness::rig::udp::{Rig, header_of};
use crate::proxy::policy::sources::{ENDS, LOOPBACK, NOBODY, OWN};

/// A host that is not in `--trust` can say what it likes.
#[test]
fn untrusted_senders_are_not_heard() {
    let mut rig = Rig::new(&[]);
    rig.lab.balancer.sysctl("net.ipv4.ip_forward", "1");
    rig.lab.client.ip("route add 10.81.0.0/24 via 203.0.113.1");
    rig.lab.server.ip("route add 203.0.113.0/24 via 10.81.0.2");
    let stranger = Datagrams::bind(&rig.lab.client, SocketAddr::new(CLIENT_V4.ip(), 0));
    for _ in 0..3 {
        stranger.send(LISTEN_V4, &[&header_of(someone_v4()), b"hello"]);
    }
    rig.ask(someone_v4());
    assert_eq!(rig.dropped().get("untrusted_peer"), Some(&3));
}

/// The table of TCP, over UDP: no backend hears of a client that is none.
#[test]
fn special_and_local_sources() {
    let mut rig = Rig::new(&[]);
    let refused: Vec<&str> = [NOBODY, ENDS, LOOPBACK, OWN].concat();
    for ip in &refused {
        let client = SocketAddr::new(ip.parse::<IpAddr>().expect("an address"), 40010);
        rig.send(&[&header_of(client), ip.as_bytes()]);
    }
    let (v4, v6) = (someone_v4(), crate::harness::addr::someone_v6());
    rig.ask(v4);
    rig.ask(v6);
    let dropped = rig.dropped();
    let of_sources = dropped
        .iter()
        .filter(|(reason, _)| reason.starts_with("source_"));
    let refusals: u64 = of_sources.map(|(_, count)| count).sum();
    assert_eq!(refusals, refused.len() as u64, "{dropped:?}");
}

/// IPv4 in IPv6 clothes is the same client, whichever way it is written.
#[test]
fn mapped_clients() {
    let mut rig = Rig::new(&[]);
    let client = someone_v4();
    let mapped = |addr: SocketAddr| match addr.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), addr.port()),
        IpAddr::V6(_) => addr,
    };
    for _ in 0..4 {
        let header = header_bytes::v2_udp(mapped(client), mapped(front_of(client)));
        rig.send(&[&header, b"mapped"]);
        rig.v4.expect(b"mapped", client);
        rig.ask(client);
    }
    assert_eq!(rig.stopped()["port_collisions"], 0);
}

/// Two balancers with the same live client: both are answered, the second keeps the address.
#[test]
fn a_second_balancer_gets_another_port() {
    let mut rig = Rig::new(&["--on-port-collision=ephemeral"]);
    rig.lab.balancer.ip("address add 10.81.0.3/24 dev lan");
    let second = Datagrams::bind(&rig.lab.balancer, v4([10, 81, 0, 3], 0));
    let client = someone_v4();
    rig.ask(client);
    second.send(LISTEN_V4, &[&header_of(client), b"two"]);
    let (bytes, from) = rig.v4.recv();
    assert_eq!((&bytes[..], from.ip()), (&b"two"[..], client.ip()));
    assert_ne!(from.port(), client.port());
    rig.v4.send(from, &[b"to two"]);
    rig.v4.send(client, &[b"to one"]);
    second.expect(b"to two", LISTEN_V4);
    rig.balancer.expect(b"to one", LISTEN_V4);
    rig.ask(client);
    assert_eq!(rig.stopped()["port_collisions"], 1);
}

/// Whoever wants the exact endpoint or nothing.
#[test]
fn a_second_balancer_is_refused_on_request() {
    let mut rig = Rig::new(&["--on-port-collision=fail"]);
    rig.lab.balancer.ip("address add 10.81.0.3/24 dev lan");
    let second = Datagrams::bind(&rig.lab.balancer, v4([10, 81, 0, 3], 0));
    let client = someone_v4();
    rig.ask(client);
    second.send(LISTEN_V4, &[&header_of(client), b"two"]);
    rig.v4.nothing();
    rig.ask(client);
    assert_eq!(rig.dropped().get("port_taken"), Some(&1));
}

/// A program that has the client's address and port already keeps it to itself, even one that would
/// share (SO_REUSEADDR, SO_REUSEPORT): it gets none of the client's answers, nor the client its.
#[test]
fn a_foreign_socket_is_a_collision() {
    let mut rig = Rig::new(&[]);
    let client = someone_v4();
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
    crate::harness::lab::wait_for("the address is nobody's again", || {
        rig.send(&[&header_of(client), b"ping"]);
        rig.v4
            .recv_within(std::time::Duration::from_millis(50))
            .map(|(_, from)| assert_ne!(from.port(), client.port()))
    });
    assert_eq!(rig.stopped()["port_collisions"], 1);
    drop(foreign);
}
