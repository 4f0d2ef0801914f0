//! NAT rules of other programs must not hide clients from a UDP backend.

use std::thread;
use std::time::Duration;

use crate::harness::addr::{fresh_client_v4, fresh_client_v6};
use crate::harness::admin::{ADMIN, get, wait_answer};
use crate::harness::lab::{wait_for, wait_until};
use crate::harness::nat_rules::{NatRules, ON_LOOPBACK};
use crate::harness::rig::udp::{UdpRig, datagram_header_for};

/// The backend gets no datagram of a client that it would take for another, in user space and in the kernel.
#[test]
fn session_that_a_rule_masquerades_does_not_begin() {
    for rules in &ON_LOOPBACK {
        for data_path in ["userspace", "kernel"] {
            let mut rig = UdpRig::new(&[ADMIN, &format!("--data-path={data_path}")]);
            rules.install(&rig.lab.server);
            for client in rules.clients() {
                rig.send_from_balancer(&[&datagram_header_for(client), b"secret"]);
                rig.send_from_balancer(&[&datagram_header_for(client), b"secret"]);
            }
            for _ in 0..5 {
                rig.round_trip(fresh_client_v4());
                rig.round_trip(fresh_client_v6());
            }
            wait_until(rules.program, || {
                get(&rig.lab.server, &[], "/readyz").starts_with("ready; but clients like")
            });
            NatRules::remove(&rig.lab.server);
            // Fresh ports, for which connection tracking has no entry.
            for client in rules.clients() {
                rig.round_trip(client);
            }
            wait_answer(&rig.lab.server, "/readyz", "ready\n200");
            let dropped = rig.stop_and_count_drops();
            assert_eq!(dropped.get("source_translated"), Some(&4), "{dropped:?}");
        }
    }
}

/// The first NAT rule enables connection tracking, which then applies the rule to open sessions in use.
#[test]
fn active_session_is_verified_again() {
    let rig = UdpRig::new(&[ADMIN]);
    let [docker, ..] = &ON_LOOPBACK;
    let clients = docker.clients();
    clients.iter().for_each(|client| rig.round_trip(*client));
    docker.install(&rig.lab.server);
    wait_until("the sessions are refused", || {
        for client in clients {
            rig.send_from_balancer(&[&datagram_header_for(client), b"secret"]);
        }
        thread::sleep(Duration::from_millis(100));
        let ready = get(&rig.lab.server, &[], "/readyz");
        ready.starts_with("ready; but clients like")
    });
    let refused = || {
        let metrics = get(&rig.lab.server, &[], "/metrics");
        let name = "peername_udp_dropped_total{reason=\"source_translated\"} ";
        let count = metrics
            .split_once(name)
            .and_then(|(_, rest)| rest.lines().next());
        count.map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    let before = wait_for("counts at rest", || {
        let earlier = refused();
        // Workers add their counts once a second.
        thread::sleep(Duration::from_millis(1500));
        (refused() == earlier).then_some(earlier)
    });
    for client in clients {
        rig.send_from_balancer(&[&datagram_header_for(client), b"secret"]);
    }
    wait_until("both are refused", || refused() == before + 2);
}

/// Connection tracking forgets an idle session before the proxy does, and then applies rules that were added meanwhile.
#[test]
fn idle_session_is_verified_again() {
    let mut rig = UdpRig::new(&[]);
    let lab = &rig.lab;
    lab.server
        .sysctl("net.netfilter.nf_conntrack_udp_timeout", "1");
    lab.server
        .sysctl("net.netfilter.nf_conntrack_udp_timeout_stream", "1");
    let [docker, ..] = &ON_LOOPBACK;
    let clients = docker.clients();
    clients.iter().for_each(|client| rig.round_trip(*client));
    docker.install(&rig.lab.server);
    // The proxy verifies a session again that was idle for 20 s.
    thread::sleep(Duration::from_secs(21));
    for client in clients {
        rig.send_from_balancer(&[&datagram_header_for(client), b"secret"]);
    }
    // Both have been handled when another client is served.
    rig.round_trip(fresh_client_v4());
    rig.round_trip(fresh_client_v6());
    let dropped = rig.stop_and_count_drops();
    assert_eq!(dropped.get("source_translated"), Some(&2), "{dropped:?}");
}
