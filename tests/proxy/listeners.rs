//! Many ports in one process: each has its own target, and costs no more than its socket.

use std::net::SocketAddr;

use crate::harness::addr::{BALANCER_V4, LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::backend::Backend;
use crate::harness::datagram::DatagramSocket;
use crate::harness::lab::{Host, Lab, assert_fails};
use crate::harness::peername::{BINARY, IS_STATIC, Peername, words};
use crate::harness::rig::proxy::connect_client;
use crate::harness::rig::udp::datagram_header_for;

/// Both protocols on a thousand ports take as many threads as on two ports, and little memory.
#[test]
fn thousand_ports_cost_no_threads_and_little_memory() {
    let lab = Lab::new();
    let proxy = start_on_ports(&lab, "20000-20001");
    let (kib_of_few, threads_of_few) = (proxy.anonymous_kib(), proxy.status_field("Threads"));
    drop(proxy);
    let proxy = start_on_ports(&lab, "20000-20999");
    // Two workers, two protocols: 4000 sockets. The kernel's memory for them is not counted here.
    let grown = proxy.anonymous_kib().saturating_sub(kib_of_few);
    // musl's allocator rounds up more than glibc's.
    let limit = if IS_STATIC { 2560 } else { 2048 };
    assert!(grown < limit, "{grown} KiB for 1000 ports");
    assert_eq!(proxy.status_field("Threads"), threads_of_few);
    for port in [20000, 20500, 20999] {
        let (listen, target) = (with_port(LISTEN_V4, port), with_port(TARGET_V4, port));
        let backend = Backend::listen(&lab.server, target);
        let client = fresh_client_v4();
        let down = connect_client(&lab, listen, client);
        let up = backend.accept();
        assert_eq!((up.peer_addr(), up.local_addr()), (client, target));
        down.assert_reaches(&up, b"ping");

        let backend = DatagramSocket::bind(&lab.server, target);
        let balancer = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
        balancer.round_trip(listen, &datagram_header_for(client), &backend, client);
    }
}

/// The start fails and reports how many sockets are needed. Otherwise some ports would fail while the proxy serves others.
#[test]
fn too_few_descriptors_for_the_ports_fail_the_start() {
    let host = Host::new();
    let args = words(
        "proxy --target=127.0.0.1:443 --trust=any --listen=127.0.0.1:20000-20999 --workers=2",
    );
    let through = ["prlimit", "--nofile=1024:1024", BINARY];
    let output = Peername::run_with_input(&host, &through, &args, "");
    assert_fails(&output, 1, &["2000 listening sockets", "LimitNOFILE"]);
}

#[test]
fn port_range_that_targets_itself_is_refused() {
    let host = Host::new();
    for (listen, target) in [
        ("0.0.0.0:9000-9100", "-4127.0.0.1:9050"),
        ("[::]:9000-9100", "-4127.0.0.1:9050"),
        ("0.0.0.0:9000-9100", "-4127.0.0.1:same"),
        ("[::1]:9000-9100", "-6[::1]:same"),
    ] {
        let listen = format!("--listen={listen}");
        let error = Peername::run_failing(&host, &["proxy", "--trust=any", &listen, target], 2);
        assert!(error.contains("to itself"), "{listen} {target}: {error}");
    }
}

fn start_on_ports(lab: &Lab, ports: &str) -> Peername {
    let line = format!(
        "proxy --listen=10.81.0.1:{ports} --protocol=both --target-v4=127.0.0.1:same \
         --trust=10.81.0.0/24 --workers=2 --log-format=json"
    );
    let args = words(&line);
    let proxy = Peername::start_listening(&lab.server, &args);
    proxy.wait_logged(&format!("10.81.0.1:{ports}"));
    proxy
}

fn with_port(host: SocketAddr, port: u16) -> SocketAddr {
    SocketAddr::new(host.ip(), port)
}
