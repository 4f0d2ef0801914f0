//! A backend on another host: its replies must be routed back to the proxy's host.
//!
//! ```text
//!   balancer ───────────── proxy ───────────── backend
//!   10.81.0.2              10.81.0.1
//!   fd81::2                10.82.0.1           10.82.0.5
//!                          fd82::1             fd82::5
//! ```

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::harness::addr::{BALANCER_V4, LISTEN_V4, addr, fresh_client_v4, fresh_client_v6};
use crate::harness::admin::{ADMIN, get, wait_answer};
use crate::harness::backend::Backend;
use crate::harness::conn::{Conn, End};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes::{LOCAL, STREAM_V4, raw};
use crate::harness::lab::{
    Host, Lab, assert_contains, assert_fails, assert_succeeds, assert_within, stdout_text,
    wait_until,
};
use crate::harness::nat_rules::{NatRules, ON_LOOPBACK};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::{connect_client, connect_fresh_client, header_for};
use crate::harness::rig::udp;

#[test]
fn replies_come_back_by_mark() {
    let rig = ThirdHostRig::new();
    let before = routing(&rig.lab.server);
    let added = rig.add_routes("both");
    assert_contains(&added, &["table inet peername_mark_123: "]);
    assert_eq!(rig.add_routes("both"), added);
    let _proxy = rig.proxy(&["--mark=123", "--protocol=both"]);
    for (target, client) in [
        (TARGET_V4, fresh_client_v4()),
        (TARGET_V6, fresh_client_v6()),
    ] {
        let backend = Backend::listen(&rig.backend, addr(target));
        let down = connect_client(&rig.lab, LISTEN_V4, client);
        let up = backend.accept_from(client);
        up.send(&[7; 100_000]);
        assert_eq!(down.recv(100_000), [7; 100_000]);
        down.send(&[8; 100_000]);
        assert_eq!(up.recv(100_000), [8; 100_000]);
    }
    for (target, client) in [
        (TARGET_V4, fresh_client_v4()),
        (TARGET_V6, fresh_client_v6()),
    ] {
        let backend = DatagramSocket::bind(&rig.backend, addr(target));
        let balancer = DatagramSocket::bind(&rig.lab.balancer, SocketAddr::new(BALANCER_V4, 0));
        let header = udp::datagram_header_for(client);
        balancer.round_trip(LISTEN_V4, &header, &backend, client);
    }
    rig.routes(&["remove"]);
    assert_eq!(routing(&rig.lab.server), before);
}

/// The backend's socket can't be looked up on another host, so the proxy verifies with which source address a packet leaves.
#[test]
fn client_that_a_rule_masquerades_is_refused() {
    let rig = ThirdHostRig::new();
    rig.add_routes("both");
    // Lets the proxy work without a mark, too, because whatever arrives by the backend's device is delivered on this host.
    for ip in ["ip", "ip -6"] {
        let rule = format!(
            "{ip} rule add iif eth1 lookup 300; {ip} route add local default dev lo table 300"
        );
        rig.lab.server.run("sh", &["-ec", &rule]);
    }
    let [docker, ..] = &ON_LOOPBACK;
    for mark in [&["--mark=123"][..], &[]] {
        let mut proxy = rig.proxy(&[mark, &["--protocol=both"]].concat());
        docker.install(&rig.lab.server);
        for (target, client) in [TARGET_V4, TARGET_V6].into_iter().zip(docker.clients()) {
            let backend = Backend::listen(&rig.backend, addr(target));
            let request = [&header_for(client), &b"secret"[..]].concat();
            let down = Conn::connect_and_send(&rig.lab.balancer, LISTEN_V4, &request);
            assert_eq!(down.wait_closed().0, End::Reset, "{client}");
            let (received, _) = backend.accept().recv_to_end();
            assert_eq!(received, b"", "{client}");
        }
        proxy.wait_outcome("source_translated");
        if mark.is_empty() {
            // Over UDP the egress is verified only where there is a mark.
            continue;
        }
        let backend = DatagramSocket::bind(&rig.backend, addr(TARGET_V4));
        let balancer = DatagramSocket::bind(&rig.lab.balancer, SocketAddr::new(BALANCER_V4, 0));
        let [masqueraded, _] = docker.clients();
        let kept = fresh_client_v4();
        for (client, payload) in [(masqueraded, b"secret"), (kept, b"public")] {
            balancer.send(LISTEN_V4, &[&udp::datagram_header_for(client), payload]);
        }
        backend.expect_datagram(b"public", kept);
        NatRules::remove(&rig.lab.server);
        rig.add_routes("both");
        proxy.stop();
    }
}

/// The route keeper (`--setup-routes`) restores the table of the mark, too, because `systemctl reload nftables` flushes all
/// tables.
#[test]
fn flushed_table_of_a_mark_is_restored() {
    let rig = ThirdHostRig::new();
    let before = routing(&rig.lab.server);
    let mut proxy = rig.proxy(&["--mark=123", "--setup-routes"]);
    let backend = Backend::listen(&rig.backend, addr(TARGET_V4));
    let assert_served = || {
        let (down, up) = connect_fresh_client(&rig.lab, LISTEN_V4, &backend);
        up.assert_reaches(&down, b"back");
    };
    assert_served();
    assert_within(3, Duration::from_secs(1), || {
        let flushed_at = Instant::now();
        rig.lab.server.nft("flush ruleset");
        wait_until("the table is restored", || {
            let tables = rig.lab.server.run("nft", &["list", "tables"]);
            tables.contains("peername_mark_123")
        });
        flushed_at.elapsed()
    });
    assert_served();
    proxy.wait_logged_parts(&["was removed by process", "(nft)"]);
    proxy.stop();
    assert_eq!(routing(&rig.lab.server), before);
}

/// Without a keeper, the proxy notices a flushed table: clients are refused at once, and `/readyz` reports it.
#[test]
fn flush_of_a_permanent_table_is_noticed() {
    let rig = ThirdHostRig::new();
    rig.add_routes("tcp");
    let proxy = rig.proxy(&["--mark=123", ADMIN]);
    let _backend = Backend::listen(&rig.backend, addr(TARGET_V4));
    let readyz = || get(&rig.lab.server, &[], "/readyz");
    assert!(readyz().ends_with("200"));
    rig.lab.server.nft("flush ruleset");
    proxy.wait_logged("run `peername routes add --mark 123 --target 10.82.0.5:9000` as root");
    assert!(readyz().ends_with("503"));
    let client = header_for(fresh_client_v4());
    let down = Conn::connect_and_send(&rig.lab.balancer, LISTEN_V4, &client);
    let (_, elapsed) = down.wait_closed();
    assert!(elapsed < Duration::from_secs(1), "{elapsed:?}");
    rig.add_routes("tcp");
    wait_until("readiness", || readyz().ends_with("200"));
}

/// Health checks are marked as well and take the same route; go-mmproxy's are not and take another.
#[test]
fn health_checks_are_marked() {
    let rig = ThirdHostRig::new();
    rig.add_routes("tcp");
    let _proxy = rig.proxy(&["--mark=123"]);
    let backend = Backend::listen(&rig.backend, addr(TARGET_V4));
    rig.lab
        .server
        .add_filter("output", "tcp dport 9000 meta mark != 123 reject");
    let down = Conn::connect_and_send(&rig.lab.balancer, LISTEN_V4, &raw(LOCAL, STREAM_V4, &[]));
    let up = backend.accept();
    assert_eq!(up.peer_addr().ip(), addr("10.82.0.1:0").ip());
    up.assert_reaches(&down, b"well");
}

/// `doctor` connects to the backend from spoofed addresses rather than judge by settings.
#[test]
fn doctor_probes_the_reply_path() {
    let rig = ThirdHostRig::new();
    let _backends =
        [TARGET_V4, TARGET_V6].map(|target| Backend::listen(&rig.backend, addr(target)));
    let doctor = || {
        let args = ["doctor", "--mark=123", TARGET_OPTION_V4, TARGET_OPTION_V6];
        stdout_text(&Peername::run(&rig.lab.server, &args))
    };
    let report = doctor();
    assert_contains(&report, &["FAIL  spoofed connect: 10.82.0.5:9000"]);
    assert_contains(
        &report,
        &["`peername routes add --mark 123 --target 10.82.0.5:9000` as root"],
    );
    rig.add_routes("tcp");
    let report = doctor();
    assert_contains(
        &report,
        &["ok    spoofed connect: 10.82.0.5:9000 answers 192.0.2.1"],
    );
    assert_contains(
        &report,
        &["ok    spoofed connect: [fd82::5]:9000 answers 2001:db8::1"],
    );
}

/// Kubernetes masquerades what does not come from pods. Every client is refused before the backend sees its connection, and
/// `/readyz` and `doctor` report the masquerading.
#[test]
fn masquerading_rule_towards_the_backend_is_noticed() {
    let rig = ThirdHostRig::new();
    rig.add_routes("tcp");
    let server = &rig.lab.server;
    let backends = [TARGET_V4, TARGET_V6].map(|target| Backend::listen(&rig.backend, addr(target)));
    server.run("sh", &["-ec", FLANNEL]);
    let proxy = rig.proxy(&["--mark=123", ADMIN]);
    for client in [fresh_client_v4(), fresh_client_v6()] {
        let down = connect_client(&rig.lab, LISTEN_V4, client);
        down.wait_reset();
    }
    backends.iter().for_each(Backend::assert_no_connection);
    assert!(get(server, &[], "/readyz").ends_with("503"));
    assert!(
        proxy.log().contains("would see 10.82.0.1"),
        "{}",
        proxy.log()
    );
    let doctor = Peername::run(
        server,
        &["doctor", "--mark=123", TARGET_OPTION_V4, TARGET_OPTION_V6],
    );
    assert_contains(
        &stdout_text(&doctor),
        &[
            "FAIL  clients' addresses: 10.82.0.5:9000 would see 10.82.0.1",
            "FAIL  clients' addresses: [fd82::5]:9000 would see fd82::1",
        ],
    );
    NatRules::remove(server);
    rig.routes(&["remove"]);
    rig.add_routes("tcp");
    wait_answer(server, "/readyz", "ready\n200");
}

/// Without the rules, connections are closed rather than left waiting, and the log reports that the backend is on another host.
#[test]
fn missing_rules_on_another_host_are_logged() {
    let rig = ThirdHostRig::new();
    let refused = Peername::run(
        &rig.lab.server,
        &["routes", "add", TARGET_OPTION_V4, TARGET_OPTION_V6],
    );
    assert_fails(&refused, 1, &["--mark"]);
    let proxy = rig.proxy(&["--mark=123", "--connect-timeout=300ms"]);
    proxy.wait_logged_parts(&["10.82.0.5:9000", "another host"]);
    let _backend = Backend::listen(&rig.backend, addr(TARGET_V4));
    let down = connect_client(&rig.lab, LISTEN_V4, fresh_client_v4());
    down.wait_closed();
    wait_until("the reason", || proxy.outcomes() == ["connect_timeout"]);
}

/// The lab's network, and a third host with the backend.
struct ThirdHostRig {
    backend: Host,
    lab: Lab,
}

impl ThirdHostRig {
    fn new() -> Self {
        let (lab, backend) = (Lab::without_routes(), Host::new());
        lab.server.add_veth("eth1", &backend, "eth0");
        // A host that wants to send a packet from a client's address sends the neighbour solicitation from its
        // link-local address, so both hosts need one.
        lab.server
            .add_addresses("eth1", &["10.82.0.1/24", "fd82::1/64", "fe80::1/64"]);
        backend.add_addresses("eth0", &["10.82.0.5/24", "fd82::5/64", "fe80::5/64"]);
        backend.ip("route add default via 10.82.0.1");
        backend.ip6("route add default via fd82::1");
        Self { backend, lab }
    }

    fn proxy(&self, args: &[&str]) -> Peername {
        let line = format!(
            "proxy --listen=10.81.0.1:8443 {TARGET_OPTION_V4} {TARGET_OPTION_V6} \
             --trust=10.81.0.0/24 --log-format=json -v"
        );
        let usual = words(&line);
        Peername::start_listening(&self.lab.server, &[&usual[..], args].concat())
    }

    fn add_routes(&self, protocol: &str) -> String {
        let protocol = format!("--protocol={protocol}");
        self.routes(&[
            "add",
            "--mark=123",
            TARGET_OPTION_V4,
            TARGET_OPTION_V6,
            &protocol,
        ])
    }

    fn routes(&self, args: &[&str]) -> String {
        assert_succeeds(&Peername::run(
            &self.lab.server,
            &[&["routes"], args].concat(),
        ))
    }
}

/// The rules, routes and tables that `routes add` installs.
fn routing(host: &Host) -> String {
    let show = "ip rule; ip -6 rule; ip route show table 21100; ip -6 route show table 21100; nft list ruleset";
    host.run("sh", &["-c", &format!("({show}) 2>/dev/null || true")])
}

const TARGET_V4: &str = "10.82.0.5:9000";
const TARGET_V6: &str = "[fd82::5]:9000";
const TARGET_OPTION_V4: &str = "--target-v4=10.82.0.5:9000";
const TARGET_OPTION_V6: &str = "--target-v6=[fd82::5]:9000";
/// As flannel and k3s install it, for a pod network that the backend is in.
const FLANNEL: &str = "
    iptables -t nat -N FLANNEL-POSTRTG
    iptables -t nat -A POSTROUTING -j FLANNEL-POSTRTG
    iptables -t nat -A FLANNEL-POSTRTG ! -s 10.82.0.0/24 -d 10.82.0.0/24 -j MASQUERADE --random-fully
    ip6tables -t nat -A POSTROUTING ! -s fd82::/64 -d fd82::/64 -j MASQUERADE --random-fully";
