//! TPROXY over UDP: replies leave from the address that the request was sent to, through reply sockets.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use super::{add_routes, proxy};
use crate::harness::addr::{
    BALANCER_V4, BALANCER_V6, addr, fresh_client_like, fresh_client_v4, fresh_client_v6, v4,
};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes::v2_udp;
use crate::harness::lab::{Lab, wait_for};

/// A link-local address is valid on its link only, so the reply has to leave by that link.
#[test]
fn reply_to_a_link_local_balancer_leaves_by_its_link() {
    let lab = lab_with_rules();
    lab.server.add_addresses("eth0", &["fe80::1/64"]);
    lab.balancer.add_addresses("lan", &["fe80::2/64"]);
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
        balancer.round_trip(to, &v2_udp(client, to), &backend, client);
    }
}

/// Each destination counts as a listener of its own, those with the listener's own port too: even for one client behind one
/// port of a balancer, and even if only the first datagram names the client.
#[test]
fn replies_come_from_the_original_destination() {
    let own = [10, 81, 0, 1];
    let ports = [v4(own, 15_001), v4(own, 15_002)];
    let addresses = [v4(own, 25_577), v4([10, 81, 0, 77], 25_577)];
    for (dialect, destinations) in [
        ("each", ports),
        ("first", ports),
        ("each", addresses),
        ("first", addresses),
    ] {
        let lab = lab_with_rules();
        lab.server.add_addresses("eth0", &["10.81.0.77/24"]);
        let args = ["--target-v4=127.0.0.1:9000", "--udp-header", dialect];
        let _proxy = proxy(&lab.server, "udp", &args);
        let backend = DatagramSocket::bind(&lab.server, addr("127.0.0.1:9000"));
        let balancer = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
        let header = v2_udp(fresh_client_v4(), v4([203, 0, 113, 1], 53));
        let clients = destinations.map(|to| {
            balancer.send(to, &[&header, b"ping"]);
            backend.recv().1
        });
        assert_ne!(clients[0], clients[1]);
        // The reply to the last request comes first.
        for (client, from) in clients.into_iter().zip(destinations).rev() {
            backend.send(client, &[b"pong"]);
            balancer.expect_datagram(b"pong", from);
        }
    }
}

/// Reply sockets expire as sessions do, and then their ports are free for other programs.
#[test]
fn expired_reply_sockets_free_their_ports() {
    let lab = lab_with_rules();
    let args = ["--target-v4=127.0.0.1:9000", "--close-after=1s"];
    let _proxy = proxy(&lab.server, "udp", &args);
    let backend = DatagramSocket::bind(&lab.server, addr("127.0.0.1:9000"));
    let balancer = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let (to, client) = (addr("10.81.0.1:15001"), fresh_client_v4());
    balancer.round_trip(to, &v2_udp(client, to), &backend, client);
    wait_for("the port is free", || {
        let bind = || UdpSocket::bind("0.0.0.0:15001");
        lab.server.enter(bind).ok()
    });
}

/// The reply can't leave from its port, because another server is bound to that port on all addresses.
#[test]
fn taken_reply_port_is_named_in_the_log() {
    let lab = lab_with_rules();
    let proxy = proxy(&lab.server, "udp", &["--target-v4=127.0.0.1:9000"]);
    let backend = DatagramSocket::bind(&lab.server, addr("127.0.0.1:9000"));
    let balancer = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let _taken = DatagramSocket::bind(&lab.server, addr("0.0.0.0:15001"));
    let (to, client) = (addr("10.81.0.1:15001"), fresh_client_v4());
    balancer.send(to, &[&v2_udp(client, to), b"ping"]);
    backend.expect_datagram(b"ping", client);
    backend.send(client, &[b"pong"]);
    proxy.wait_logged_parts(&["WARN", "10.81.0.1:15001", "0.0.0.0", "--tproxy-ports"]);
}

/// Replies to datagrams of this host's own programs reach them rather than the proxy, even on unconnected sockets. A request of
/// a balancer is never taken for such a reply, even if connection tracking knows its flow by a datagram of the proxy only.
#[test]
fn replies_to_this_hosts_own_datagrams_reach_it() {
    let lab = lab_with_rules();
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
        let balancer_socket = DatagramSocket::bind(&lab.balancer, SocketAddr::new(balancer, 9000));
        let program = DatagramSocket::bind(&lab.server, addr(&format!("{any}:15000")));
        program.send(SocketAddr::new(balancer, 9000), &[b"hello?"]);
        let (_, from) = balancer_socket.recv();
        assert_eq!(from, addr(&format!("{own}:15000")));
        balancer_socket.send(from, &[b"me"]);
        program.expect_datagram(b"me", SocketAddr::new(balancer, 9000));
        // Once connection tracking has forgotten the request, it takes the proxy's reply for the first packet of a
        // flow.
        let backend = DatagramSocket::bind(&lab.server, addr(target));
        let to = addr(&format!("{own}:15001"));
        let client = fresh_client_like(to);
        balancer_socket.send(to, &[&v2_udp(client, to), b"one"]);
        backend.expect_datagram(b"one", client);
        thread::sleep(Duration::from_millis(1500));
        backend.send(client, &[b"back"]);
        balancer_socket.expect_datagram(b"back", to);
        balancer_socket.send(to, &[&v2_udp(client, to), b"two"]);
        backend.expect_datagram(b"two", client);
    }
}

/// A lab whose server redirects a range of UDP ports to the proxy.
fn lab_with_rules() -> Lab {
    let lab = Lab::new();
    let ports = "--tproxy-ports=10000-20000";
    add_routes(&lab.server, &[ports, "--tproxy-to=25577", "--protocol=udp"]);
    lab
}
