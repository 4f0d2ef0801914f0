//! NAT rules of other programs must not hide clients from a backend on this host.

use std::net::SocketAddr;
use std::time::Duration;

use crate::harness::addr::{LISTEN_V4, fresh_client_v4, fresh_client_v6, v4};
use crate::harness::admin::{ADMIN, get, wait_answer};
use crate::harness::backend::Backend;
use crate::harness::conn::{Conn, End};
use crate::harness::lab::{Lab, Process, assert_count, stdout_text, wait_until};
use crate::harness::nat_rules::{NatRules, ON_LOOPBACK};
use crate::harness::peername::Peername;
use crate::harness::rig::proxy::{ProxyRig, connect_client, header_for};

/// The backend gets no byte from a client that it would take for another. Other clients are served meanwhile, and all clients
/// once the rules are gone.
#[test]
fn client_that_a_rule_masquerades_is_refused() {
    for rules in &ON_LOOPBACK {
        let mut rig = ProxyRig::new(&[ADMIN]);
        assert_eq!(get(&rig.lab.server, &[], "/readyz"), "ready\n200");
        rules.install(&rig.lab.server);
        for client in rules.clients() {
            assert_refused(&rig, client, rules.program);
        }
        rig.assert_serves(fresh_client_v4());
        rig.assert_serves(fresh_client_v6());
        rig.proxy.wait_logged("iptables -t nat -S POSTROUTING");
        rig.proxy.wait_outcome("source_translated");
        wait_until(rules.program, || {
            let body = get(&rig.lab.server, &[], "/readyz");
            body.starts_with("ready; but clients like") && body.ends_with("200")
        });
        rig.proxy.reload("\"reloaded\"");
        let body = get(&rig.lab.server, &[], "/readyz");
        assert!(body.starts_with("ready; but clients like"), "{body}");
        NatRules::remove(&rig.lab.server);
        for client in rules.clients() {
            rig.assert_serves(client);
        }
        wait_answer(&rig.lab.server, "/readyz", "ready\n200");
    }
}

/// A client whose probes are dropped by a filter stays refused, and the log reports the reason once.
#[test]
fn client_whose_probes_are_filtered_stays_refused() {
    let mut rig = ProxyRig::new(&[ADMIN]);
    let [docker, ..] = &ON_LOOPBACK;
    docker.install(&rig.lab.server);
    let [client, _] = docker.clients();
    assert_refused(&rig, client, docker.program);
    let readyz = || get(&rig.lab.server, &[], "/readyz");
    wait_until("the probe", || {
        readyz().starts_with("ready; but clients like")
    });
    let filter = format!("ip saddr {} drop", client.ip());
    rig.lab.server.add_filter("output", &filter);
    let unclear = "so it stays refused: sendto(SOCK_RAW)";
    rig.proxy.wait_logged(unclear);
    // Time for several more probes.
    std::thread::sleep(Duration::from_secs(3));
    assert!(readyz().starts_with("ready; but clients like"));
    assert_eq!(rig.proxy.count_logged(unclear), 1);
    rig.lab.server.nft("delete table inet test");
    NatRules::remove(&rig.lab.server);
    rig.proxy.wait_logged("do not replace the address of");
    rig.assert_serves(client);
}

/// Where the routing rule is limited to the backend's port, the reply to the address that NAT has put in the client's place is
/// lost. The connection times out, but its outcome is `source_translated` rather than an outage of the backend.
#[test]
fn lost_replies_of_a_masqueraded_client_are_no_backend_outage() {
    let lab = Lab::without_routes();
    lab.server
        .ip("rule add from 127.0.0.0/8 iif lo ipproto tcp sport 9000 table 100");
    lab.server.ip("route add local 0.0.0.0/0 dev lo table 100");
    let _backend = Backend::listen(&lab.server, v4([127, 0, 0, 1], 9000));
    let proxy = Peername::proxy(&lab, &[ADMIN, "--connect-timeout=300ms"]);
    let [docker, ..] = &ON_LOOPBACK;
    docker.install(&lab.server);
    let [client, _] = docker.clients();
    let down = connect_client(&lab, LISTEN_V4, client);
    down.wait_reset();
    proxy.wait_outcome("source_translated");
    let metrics = get(&lab.server, &[], "/metrics");
    assert!(!metrics.contains("peername_backend_up{"), "{metrics}");
}

#[track_caller]
fn assert_refused(rig: &ProxyRig, client: SocketAddr, program: &str) {
    let down = rig.connect_and_send(&[&header_for(client), &b"secret"[..]].concat());
    assert_eq!(down.wait_closed().0, End::Reset, "{program}, {client}");
    let backend = if client.is_ipv4() {
        &rig.backend_v4
    } else {
        &rig.backend_v6
    };
    let up = backend.accept();
    assert_eq!(up.recv_to_end(), (Vec::new(), End::Reset), "{program}");
}

/// Redis without a password serves clients on loopback only (protected mode), and a masqueraded client would be one of them.
#[test]
fn protected_redis_is_not_opened_by_a_masquerading_rule() {
    let lab = Lab::new();
    let args = ["--bind", "::1", "--port", "9000", "--save", ""];
    let listen = "[::1]:9000".parse().expect("an address");
    let _redis = Process::start(&lab.server, "redis-server", &args).wait_listening(&[listen]);
    let _proxy = Peername::proxy(&lab, &[]);
    let [docker, ..] = &ON_LOOPBACK;
    docker.install(&lab.server);
    let answer = |client| {
        let request = [&header_for(client), &b"PING\r\n"[..]].concat();
        let down = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &request);
        down.recv_text_to_end()
    };
    assert!(answer(fresh_client_v6()).starts_with("-DENIED"));
    let [_, masqueraded] = docker.clients();
    assert_eq!(answer(masqueraded), "");
}

/// The server sees the client's address, although the rule leads to another server than the one that the proxy connects to.
#[test]
fn rule_that_redirects_the_destination_refuses_no_client() {
    let mut rig = ProxyRig::new(&[]);
    let other = Backend::listen(&rig.lab.server, v4([127, 0, 0, 1], 9001));
    let redirect =
        "iptables -t nat -A OUTPUT -p tcp -d 127.0.0.1 --dport 9000 -j REDIRECT --to-ports 9001";
    rig.lab.server.run("sh", &["-ec", redirect]);
    rig.backend_v4 = other;
    for _ in 0..3 {
        rig.assert_serves(fresh_client_v4());
    }
}

/// `doctor` tries an address of each network in the rules, and names the rule that masquerades it.
#[test]
fn doctor_finds_every_masquerading_rule() {
    let lab = Lab::new();
    let doctor = |protocol| {
        let args = [
            "doctor",
            "--target-v4=127.0.0.1:9000",
            "--target-v6=[::1]:9000",
            protocol,
        ];
        stdout_text(&Peername::run(&lab.server, &args))
    };
    for rules in &ON_LOOPBACK {
        rules.install(&lab.server);
        for protocol in ["--protocol=tcp", "--protocol=udp"] {
            let report = doctor(protocol);
            let failures: Vec<_> = report
                .lines()
                .filter(|line| line.starts_with("FAIL  clients' addresses: "))
                .collect();
            assert_eq!(failures.len(), 2, "{}: {report}", rules.program);
            assert!(failures.iter().all(|line| line.contains("`ip")), "{report}");
        }
        NatRules::remove(&lab.server);
    }
    for protocol in ["--protocol=tcp", "--protocol=udp"] {
        let report = doctor(protocol);
        assert_count(&report, "ok    clients' addresses: ", 2);
    }
}
