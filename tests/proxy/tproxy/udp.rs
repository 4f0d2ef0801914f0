//! TPROXY over UDP: replies leave from the address that the request was sent to, by reply sockets.

use std::net::{SocketAddr, UdpSocket};

use super::{add, proxy};
use crate::harness::addr::{
    BALANCER_V4, BALANCER_V6, addr, fresh_client_like, fresh_client_v4, fresh_client_v6, v4,
};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes::v2_udp;
use crate::harness::lab::{Lab, wait_for};

/// A link-local address is valid on its link only, and the reply has to leave by that.
#[test]
fn reply_to_a_link_local_balancer_leaves_by_its_link() {
    let lab = Lab::new();
    lab.server.add_addresses("eth0", &["fe80::1/64"]);
    lab.balancer.add_addresses("lan", &["fe80::2/64"]);
    let ports = "--tproxy-ports=10000-20000";
    add(&lab.server, &[ports, "--tproxy-to=25577", "--protocol=udp"]);
    let args = ["--target-v6=[::1]:9000", "--trust=fe80::/10"];
    let _proxy = proxy(&lab.server, "udp", &args);
    let backend = DatagramSocket::bind(&lab.server, addr("[::1]:9000"));
    let link = lab.balancer.run("ip", &["-o", "link", "show", "lan"]);
    let (index, _) = link.split_once(':').expect("an index");
    let balancer = DatagramSocket::bind(&lab.balancer, addr(&format!("[fe80::2%{index}]:0")));
    for to in [
        format!("[fe80::1%{index}]:25577"),
        format!("[fe80::1%{index}]:15001"),
        "[fd81::1]:15002".to_owned(),
    ] {
        let (to, client) = (addr(&to), fresh_client_v6());
        balancer.send(to, &[&v2_udp(client, to), b"ping"]);
        backend.expect_datagram(b"ping", client);
        backend.send(client, &[b"pong"]);
        balancer.expect_datagram(b"pong", to);
    }
}

/// Each destination port counts as a listener of its own: even for one client behind one port of a balancer, and even
/// if only the first datagram names the client.
#[test]
fn replies_come_from_the_original_destination_port() {
    for dialect in ["each", "first"] {
        let lab = Lab::new();
        let ports = "--tproxy-ports=10000-20000";
        add(&lab.server, &[ports, "--tproxy-to=25577", "--protocol=udp"]);
        let args = ["--target-v4=127.0.0.1:9000", "--udp-header", dialect];
        let _proxy = proxy(&lab.server, "udp", &args);
        let backend = DatagramSocket::bind(&lab.server, addr("127.0.0.1:9000"));
        let balancer = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
        let asked = [15_001, 15_002].map(|port| v4([10, 81, 0, 1], port));
        let header = v2_udp(fresh_client_v4(), v4([203, 0, 113, 1], 53));
        let seen = asked.map(|to| {
            balancer.send(to, &[&header, b"ping"]);
            backend.recv().1
        });
        assert_ne!(seen[0], seen[1]);
        // The destination that was asked last replies first.
        for (client, from) in seen.into_iter().zip(asked).rev() {
            backend.send(client, &[b"pong"]);
            balancer.expect_datagram(b"pong", from);
        }
    }
}

/// Reply sockets expire as sessions do, and then their ports are free for other programs.
#[test]
fn expired_reply_sockets_free_their_ports() {
    let lab = Lab::new();
    let ports = "--tproxy-ports=10000-20000";
    add(&lab.server, &[ports, "--tproxy-to=25577", "--protocol=udp"]);
    let args = ["--target-v4=127.0.0.1:9000", "--close-after=1s"];
    let _proxy = proxy(&lab.server, "udp", &args);
    let backend = DatagramSocket::bind(&lab.server, addr("127.0.0.1:9000"));
    let balancer = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let (to, client) = (addr("10.81.0.1:15001"), fresh_client_v4());
    balancer.send(to, &[&v2_udp(client, to), b"ping"]);
    backend.expect_datagram(b"ping", client);
    backend.send(client, &[b"pong"]);
    balancer.expect_datagram(b"pong", to);
    wait_for("the port is free", || {
        let bind = || UdpSocket::bind("0.0.0.0:15001");
        lab.server.enter(bind).ok()
    });
}

/// A server on all addresses has the port from which the reply would have to leave.
#[test]
fn taken_reply_port_is_named_in_the_log() {
    let lab = Lab::new();
    let ports = "--tproxy-ports=10000-20000";
    add(&lab.server, &[ports, "--tproxy-to=25577", "--protocol=udp"]);
    let proxy = proxy(&lab.server, "udp", &["--target-v4=127.0.0.1:9000"]);
    let backend = DatagramSocket::bind(&lab.server, addr("127.0.0.1:9000"));
    let balancer = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let _taken = DatagramSocket::bind(&lab.server, addr("0.0.0.0:15001"));
    let (to, client) = (addr("10.81.0.1:15001"), fresh_client_v4());
    balancer.send(to, &[&v2_udp(client, to), b"ping"]);
    backend.expect_datagram(b"ping", client);
    backend.send(client, &[b"pong"]);
    proxy.wait_line("naming the port and the cure", |line| {
        let says = |what| line.contains(what);
        (says("WARN") && says("10.81.0.1:15001") && says("0.0.0.0") && says("--tproxy-ports"))
            .then_some(())
    });
}

/// Replies to datagrams of this host's own programs reach them, even on unconnected sockets. A request of a balancer is
/// never taken for such a reply, even if the last datagram of its flow was the proxy's.
#[test]
fn replies_to_this_hosts_own_datagrams_reach_it() {
    let lab = Lab::new();
    let ports = "--tproxy-ports=10000-20000";
    add(&lab.server, &[ports, "--tproxy-to=25577", "--protocol=udp"]);
    for key in ["udp_timeout", "udp_timeout_stream"] {
        let key = format!("net.netfilter.nf_conntrack_{key}");
        lab.server.sysctl(&key, "1");
    }
    let targets = ["--target-v4=127.0.0.1:9000", "--target-v6=[::1]:9000"];
    let _proxy = proxy(&lab.server, "udp", &targets);
    for (target, any, own, balancer) in [
        ("127.0.0.1:9000", "0.0.0.0", "10.81.0.1", BALANCER_V4),
        ("[::1]:9000", "[::]", "[fd81::1]", BALANCER_V6),
    ] {
        let elsewhere = DatagramSocket::bind(&lab.balancer, SocketAddr::new(balancer, 9000));
        let asks = DatagramSocket::bind(&lab.server, addr(&format!("{any}:15000")));
        asks.send(SocketAddr::new(balancer, 9000), &[b"hello?"]);
        let (_, from) = elsewhere.recv();
        assert_eq!(from, addr(&format!("{own}:15000")));
        elsewhere.send(from, &[b"me"]);
        asks.expect_datagram(b"me", SocketAddr::new(balancer, 9000));
        // Once connection tracking has forgotten the request, it takes the proxy's reply for the first packet of a
        // flow.
        let backend = DatagramSocket::bind(&lab.server, addr(target));
        let to = addr(&format!("{own}:15001"));
        let client = fresh_client_like(to);
        elsewhere.send(to, &[&v2_udp(client, to), b"one"]);
        backend.expect_datagram(b"one", client);
        std::thread::sleep(std::time::Duration::from_millis(1500));
        backend.send(client, &[b"back"]);
        elsewhere.expect_datagram(b"back", to);
        elsewhere.send(to, &[&v2_udp(client, to), b"two"]);
        backend.expect_datagram(b"two", client);
    }
}
