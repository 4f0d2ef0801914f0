//! Balancer, proxy and backend on one host, in one network namespace.
//!
//! A header without a client must not make the proxy connect from the balancer's own address and port, because on one host the
//! balancer's connection to the proxy uses them, and connect(2) would fail. mmproxy-rs, and HAProxy with `usesrc
//! client`, make that mistake and refuse their balancer's health checks.

use std::net::SocketAddr;

use crate::harness::addr::{
    CLIENT_V4, CLIENT_V6, FRONT_V4, FRONT_V6, TARGET_V4, TARGET_V6, fresh_client_v4, v4, v6,
};
use crate::harness::backend::Backend;
use crate::harness::conn::{Conn, End};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::Lab;
use crate::harness::peername::{Peername, words};
use crate::harness::programs::sender::Haproxy;
use crate::harness::programs::server::{Redis, Server};
use crate::harness::rig::udp::datagram_header_for;

/// The balancer connects from loopback and from another address of the host, to listeners on either.
#[test]
fn header_without_a_client_is_served_on_the_same_host() {
    let lab = Lab::without_routes();
    let backends = [TARGET_V4, TARGET_V6].map(|addr| Backend::listen(&lab.balancer, addr));
    let _proxy = proxy(&lab, "tcp", &[]);
    for (name, header) in header_bytes::without_client() {
        for listen in [LOOPBACK, WAN, LOOPBACK_V6] {
            let down =
                Conn::connect_and_send(&lab.balancer, listen, &[&header, &b"check"[..]].concat());
            let up = backends[usize::from(listen.is_ipv6())].accept();
            assert!(up.peer_addr().ip().is_loopback(), "{name}");
            assert_ne!(up.peer_addr().port(), down.local_addr().port(), "{name}");
            assert_eq!(up.recv(5), b"check", "{name}");
            up.assert_reaches(&down, b"fine");
        }
    }
}

/// HAProxy's checks find the server up, and remote clients keep their addresses. With version 1, a check claims its own address
/// and port, an endpoint of this host, as the client. The proxy treats a peer that claims its own endpoint as if it had sent
/// LOCAL, unless local clients are allowed: then the backend sees the source in the check's header.
#[test]
fn haproxy_on_the_same_host_checks_and_serves() {
    for (send, options) in [
        ("send-proxy-v2", &[][..]),
        ("check-send-proxy send-proxy-v2", &[]),
        ("send-proxy", &[]),
        ("send-proxy", &["--source-policy=allow-local"]),
    ] {
        let lab = Lab::without_routes();
        let server = Redis::start(&lab.balancer);
        let mut proxy = proxy(&lab, "tcp", options);
        let haproxy = Haproxy::start_checking_redis(&lab, LOOPBACK, send);
        haproxy.wait_server_state(&lab, "UP");
        for (front, client) in [(FRONT_V4, CLIENT_V4), (FRONT_V6, CLIENT_V6)] {
            let reported = server.reported_client(&lab.client, front);
            assert_eq!(reported, client, "{send} {options:?}");
        }
        drop(server);
        haproxy.wait_server_state(&lab, "DOWN");
        assert_eq!(proxy.stop()["port_collisions"], 0, "{send} {options:?}");
    }
}

/// A peer may claim its own address only with the port of the same connection. The header to the backend then carries
/// no client, because that client's endpoint is in use on this host.
#[test]
fn peer_that_claims_its_own_endpoint_is_treated_as_local() {
    let lab = Lab::without_routes();
    let backend = Backend::listen(&lab.balancer, TARGET_V4);
    let _proxy = proxy(&lab, "tcp", &["--send-proxy=v1"]);
    for listen in [LOOPBACK, WAN] {
        let down = Conn::connect(&lab.balancer, listen);
        down.send(&header_bytes::v1(down.local_addr(), listen));
        let up = backend.accept();
        assert!(up.peer_addr().ip().is_loopback(), "{}", up.peer_addr());
        assert_ne!(up.peer_addr().port(), down.local_addr().port());
        assert_eq!(up.recv(15), b"PROXY UNKNOWN\r\n");
        // With another port the claim is refused as an address of this host.
        let down = Conn::connect(&lab.balancer, listen);
        let other = SocketAddr::new(down.local_addr().ip(), down.local_addr().port() ^ 1);
        down.send(&header_bytes::v1(other, listen));
        assert_eq!(down.wait_closed().0, End::Reset, "{listen}");
        backend.assert_no_connection();
    }
}

/// The balancer's own datagrams reach the server, and the replies reach the balancer, while a client is served, too.
#[test]
fn datagram_without_a_client_is_served_on_the_same_host() {
    let lab = Lab::without_routes();
    let backends = [TARGET_V4, TARGET_V6].map(|addr| DatagramSocket::bind(&lab.balancer, addr));
    let _proxy = proxy(&lab, "udp", &[]);
    for listen in [LOOPBACK, WAN, LOOPBACK_V6] {
        let sender = DatagramSocket::bind(&lab.balancer, SocketAddr::new(listen.ip(), 0));
        let sender_addr = sender.socket().local_addr().expect("its address");
        let (own_backend, backend) = (&backends[usize::from(listen.is_ipv6())], &backends[0]);
        let client = fresh_client_v4();
        for header in [
            header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]),
            header_bytes::v2_udp(sender_addr, listen),
        ] {
            sender.send(listen, &[&header, b"check"]);
            let (bytes, from) = own_backend.recv();
            assert_eq!(bytes, b"check", "{listen}");
            assert!(from.ip().is_loopback(), "{from}");
            assert_ne!(from.port(), sender_addr.port(), "{listen}");
            own_backend.send(from, &[b"fine"]);
            sender.expect_datagram(b"fine", listen);
            sender.round_trip(listen, &datagram_header_for(client), backend, client);
        }
    }
}

/// Starts a proxy on the balancer's host, which sets up that host's routes.
fn proxy(lab: &Lab, protocol: &str, options: &[&str]) -> Peername {
    let line = format!(
        "proxy --protocol={protocol} --setup-routes --workers=2 --log-format=json -v \
         --trust=loopback --trust=203.0.113.1 --listen={LOOPBACK} --listen={WAN} \
         --listen={LOOPBACK_V6} --target-v4={TARGET_V4} --target-v6={TARGET_V6}"
    );
    Peername::start_listening(&lab.balancer, &[&words(&line)[..], options].concat())
}

const LOOPBACK: SocketAddr = v4([127, 0, 0, 1], 8443);
const LOOPBACK_V6: SocketAddr = v6([0, 0, 0, 0, 0, 0, 0, 1], 8443);
/// The address that clients know.
const WAN: SocketAddr = v4([203, 0, 113, 1], 8443);
