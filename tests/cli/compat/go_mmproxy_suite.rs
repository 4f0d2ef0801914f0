//! The cases of go-mmproxy's own test suite that depend on its options, run against this binary under its name:
//! `*_DynamicDestination` and `tproxy.sh`.
//!
//! The headers of the former name a destination on loopback, which peername refuses. [`many_ports`](super::many_ports) has
//! destinations that it serves.

use std::net::SocketAddr;

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{Host, Lab, Process};
use crate::harness::rig::compat::{CompatRig, ROUTES, ROUTES_V6, wait_listening};

/// The client of the suite's headers.
const CLIENT: SocketAddr = v4([192, 168, 0, 1], 56324);
const LISTEN: SocketAddr = v4([127, 0, 0, 1], 12345);
const TARGET: SocketAddr = v4([127, 0, 0, 1], 54321);

/// A host with its routes, and go-mmproxy that connects to the destination of the header.
fn start(rig: &CompatRig, protocol: &str) -> (Host, Process) {
    let host = Host::new();
    host.ip(ROUTES);
    host.ip6(ROUTES_V6);
    let command = format!(
        "go-mmproxy -p {protocol} -l 0.0.0.0:12345 -4 127.0.0.1:54321 -6 [::1]:54321 -dynamic-destination"
    );
    let proxy = rig.start(&host, &command);
    wait_listening(&proxy);
    (host, proxy)
}

/// `TestListenTCP_DynamicDestination` and `TestListenUDP_DynamicDestination`, with the destination of that suite: a
/// port on loopback. It is refused, because services on loopback trust every peer that reaches them, and here any peer may
/// send headers.
#[test]
fn dynamic_destinations_on_loopback_are_refused() {
    let rig = CompatRig::new();
    let named = v4([127, 0, 0, 1], 55443);
    let (host, proxy) = start(&rig, "tcp");
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

    let (host, _proxy) = start(&rig, "udp");
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

/// `tproxy.sh`: the commands of a container's entrypoint. Then another host connects to every port of a range, and an echo
/// server answers.
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
