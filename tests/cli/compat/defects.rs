//! Defects of the predecessors that peername must not have under their names. Only those that no other test covers.

use std::fs;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use crate::harness::addr::{FRONT_V4, LISTEN_V4, TARGET_V4, fresh_client_v4, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{Host, Lab, stdout_text};
use crate::harness::rig::compat::{CompatRig, start_address_echo, wait_listening};
use crate::harness::rig::proxy::{connect_client, header_for};

/// go-mmproxy with `-listeners 8` had a socket for the client in each of eight listeners, so most replies went to a
/// balancer port other than the one that had sent the request.
#[test]
fn udp_replies_go_to_the_port_that_asked() {
    let (rig, lab) = (CompatRig::new(), Lab::new());
    let _server = start_address_echo(&lab.server, TARGET_V4);
    let proxy = rig.start(
        &lab.server,
        "go-mmproxy -p udp -l 10.81.0.1:8443 -4 127.0.0.1:9000 -listeners 8",
    );
    wait_listening(&proxy);
    let client = fresh_client_v4();
    let header = header_bytes::v2_udp(client, FRONT_V4);
    for number in 0..20 {
        let port = DatagramSocket::bind(&lab.balancer, v4([10, 81, 0, 2], 0));
        let question = format!("{number}");
        port.send(LISTEN_V4, &[&header, question.as_bytes()]);
        let answer = format!("{} {} {number}", client.ip(), client.port());
        port.expect_datagram(answer.as_bytes(), LISTEN_V4);
    }
}

/// go-mmproxy looked a link-local peer up together with its zone, which no entry of a list has.
#[test]
fn link_local_balancer_can_be_listed() {
    let (rig, lab) = (CompatRig::new(), Lab::new());
    lab.balancer.add_addresses("lan", &["fe80::2/64"]);
    lab.server.add_addresses("eth0", &["fe80::1/64"]);
    rig.0.write("subnets", "fe80::/10\n");
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let _proxy = rig
        .start(
            &lab.server,
            "go-mmproxy -l [::]:8443 -4 127.0.0.1:9000 -allowed-subnets subnets",
        )
        .wait_listening(&[LISTEN_V4]);
    let client = fresh_client_v4();
    let lan = lab.balancer.run("ip", &["-o", "link", "show", "lan"]);
    let scope = lan.split(':').next().and_then(|index| index.parse().ok());
    let front = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let front = SocketAddrV6::new(front, 8443, 0, scope.expect("its index"));
    let _down = Conn::connect_and_send(&lab.balancer, front.into(), &header_for(client));
    assert_eq!(backend.accept().peer_addr(), client);
    // Other peers are not on the list.
    Conn::assert_refused(&lab.balancer, LISTEN_V4);
}

/// go-mmproxy and mmproxy-rs used six descriptors per connection.
#[test]
fn connection_needs_two_descriptors() {
    let rig = CompatRig::new();
    let (lab, backend, proxy) = rig.start_between("go-mmproxy -l 10.81.0.1:8443 -4 127.0.0.1:9000");
    let connect = || {
        let client = fresh_client_v4();
        let down = connect_client(&lab, LISTEN_V4, client);
        (down, backend.accept())
    };
    let _first = connect();
    proxy.wait_idle();
    let before = proxy.count_fds();
    let _others: Vec<_> = (0..50).map(|_| connect()).collect();
    assert_eq!(proxy.count_fds() - before, 2 * 50);
}

/// mmproxy-rs used `--listeners`, 1 by default, as the length of the accept backlog. Most of the connections that came together
/// had to send their SYN again after a second.
#[test]
fn one_listener_has_a_full_accept_backlog() {
    let rig = CompatRig::new();
    let command = "mmproxy-rs -l 10.81.0.1:8443 -4 127.0.0.1:9000 --listeners 1";
    let (lab, backend, _proxy) = rig.start_between(command);
    let before = listen_overflows(&lab.server);
    let connect = || connect_client(&lab, LISTEN_V4, fresh_client_v4());
    let conns: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(connect)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    assert_eq!(listen_overflows(&lab.server), before);
    for _ in &conns {
        backend.accept();
    }
}

/// cloudflare/mmproxy exited with 0 at all errors of accept(2) but one.
#[test]
fn cloudflare_survives_missing_resources() {
    let (rig, lab) = (CompatRig::new(), Lab::new());
    rig.0.write("networks.txt", "0.0.0.0/0\n");
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let mut proxy = rig
        .start_with(
            &lab.server,
            &["prlimit", "--nofile=42:42"],
            "mmproxy -a networks.txt -l 10.81.0.1:8443 -4 127.0.0.1:9000 -6 [::1]:9000",
        )
        .wait_listening(&[LISTEN_V4]);
    let crowd: Vec<Conn> = (0..100)
        .map(|_| connect_client(&lab, LISTEN_V4, fresh_client_v4()))
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    assert!(proxy.is_alive(), "{}", proxy.log());
    drop(crowd);
    while backend.accept_within(Duration::from_millis(200)).is_some() {}
    let client = fresh_client_v4();
    let _down = connect_client(&lab, LISTEN_V4, client);
    assert_eq!(backend.accept().peer_addr().ip(), client.ip());
}

/// udppp panicked at an IPv6 client, at a server that refuses, and at an unreachable network.
#[test]
fn udppp_survives_what_made_it_panic() {
    let (rig, host) = (CompatRig::new(), Host::new());
    let upstream: SocketAddr = v4([127, 0, 0, 1], 8001);
    let mut sender = rig.start(&host, "udppp -m 1 -b ::1 -l 8000 -h 127.0.0.1 -r 8001 -p");
    wait_listening(&sender);
    let client = DatagramSocket::bind(&host, "[::1]:0".parse().expect("an address"));
    let front = "[::1]:8000".parse().expect("an address");
    for _ in 0..3 {
        client.send(front, &[b"no server"]);
        std::thread::sleep(Duration::from_millis(20));
    }
    let upstream = DatagramSocket::bind(&host, upstream);
    client.send(front, &[b"ping"]);
    let me = client.socket().local_addr().expect("getsockname");
    let (bytes, from) = upstream.recv();
    assert_eq!(
        bytes,
        [&header_bytes::v2_udp(me, front)[..], b"ping"].concat()
    );
    upstream.send(from, &[b"pong"]);
    client.expect_datagram(b"pong", front);
    assert!(sender.is_alive());
    // An unreachable network: the datagram is lost, the process keeps running.
    let mut sender = rig.start(&host, "udppp -m 1 -l 8002 -h 198.51.100.1 -r 8001 -p");
    wait_listening(&sender);
    let client = DatagramSocket::bind(&host, v4([127, 0, 0, 1], 0));
    client.send(v4([127, 0, 0, 1], 8002), &[b"ping"]);
    std::thread::sleep(Duration::from_millis(100));
    assert!(sender.is_alive(), "{}", sender.log());
}

/// A log that can't be written, as on a full disk, must not stop the proxy.
#[test]
fn full_log_does_not_stop_the_proxy() {
    let (rig, lab) = (CompatRig::new(), Lab::new());
    let command = "timeout 2 go-mmproxy -l 127.0.0.1:8447 -4 127.0.0.1:9000 2>/dev/full >/dev/full";
    let output = rig.run(&lab.server, &format!("{command}; echo $?"));
    // timeout(1) exits with 124 when it had to end the proxy.
    assert_eq!(stdout_text(&output), "124\n");
}

/// Connections that are opened at once: many more than a backlog of one holds, and fewer than the backend's own backlog
/// (128). The backend accepts none of them meanwhile.
const CLIENTS: usize = 100;

/// SYNs and final ACKs that found a full accept backlog (netstat(8), TcpExt).
fn listen_overflows(host: &Host) -> u64 {
    let text = host.enter(|| fs::read_to_string("/proc/thread-self/net/netstat"));
    let text = text.expect("the counters");
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("TcpExt: "));
    // A line with the counters' names is followed by one with their values.
    let mut next_line = || lines.next().expect("TcpExt").split(' ');
    let (names, values) = (next_line(), next_line());
    names
        .zip(values)
        .find(|(name, _)| *name == "ListenOverflows")
        .and_then(|(_, value)| value.parse().ok())
        .expect("ListenOverflows")
}
