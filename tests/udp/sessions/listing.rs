//! `/sessions`: the open sessions of `proxy` and `forward`.

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4, v4};
use crate::harness::admin::{ADMIN, get, list, wait_listed, wait_metric};
use crate::harness::datagram::DatagramSocket;
use crate::harness::rig::udp::{UdpRig, datagram_header_for};

#[test]
fn evictions_are_counted_by_the_limit_that_was_reached() {
    let rig = UdpRig::new(&[ADMIN, "--max-sessions-per-balancer=8"]);
    let host = &rig.lab.server;
    (0..40).for_each(|_| rig.round_trip(fresh_client_v4()));
    let sessions = list(host, &[], "/sessions").len();
    let evicted = 40 - sessions;
    assert!(evicted > 0, "{sessions} sessions");
    let line = format!("peername_udp_evictions_total{{reason=\"balancer_limit\"}} {evicted}");
    wait_metric(host, &[], &line);
    rig.proxy.wait_logged_parts(&[
        "WARN",
        "raise --max-sessions-per-balancer, or lower --close-after",
    ]);
    let by_worker = get(host, &[], "/metrics");
    let counts = by_worker.lines().filter_map(|line| {
        let (_, count) = line
            .strip_prefix("peername_worker_sessions{")?
            .split_once(' ')?;
        count.parse::<usize>().ok()
    });
    assert_eq!(counts.sum::<usize>(), sessions, "{by_worker}");
}

/// The warning about one limit does not suppress that about another. Neither is repeated for each session.
#[test]
fn each_limit_of_sessions_has_a_warning_of_its_own() {
    let limits = ["--max-sessions=12", "--max-sessions-per-balancer=8"];
    let rig = UdpRig::new(&[&limits[..], &["--workers=1"]].concat());
    let of_balancer = ["WARN", "raise --max-sessions-per-balancer"];
    let of_all = ["WARN", "raise --max-sessions (and LimitNOFILE"];
    (0..20).for_each(|_| rig.round_trip(fresh_client_v4()));
    rig.proxy.wait_logged_parts(&of_balancer);
    rig.lab.balancer.add_addresses("lan", &["10.81.0.3/24"]);
    let other_balancer = DatagramSocket::bind(&rig.lab.balancer, v4([10, 81, 0, 3], 0));
    for _ in 0..20 {
        let client = fresh_client_v4();
        let header = datagram_header_for(client);
        other_balancer.round_trip(LISTEN_V4, &header, &rig.backend_v4, client);
    }
    rig.proxy.wait_logged_parts(&of_all);
    for parts in [of_balancer, of_all] {
        let log = rig.proxy.log();
        let lines = log
            .lines()
            .filter(|line| parts.iter().all(|part| line.contains(part)));
        assert!(lines.count() < 3, "{log}");
    }
}

#[test]
fn open_sessions_are_listed_with_their_counts() {
    let rig = UdpRig::new(&[ADMIN]);
    let host = &rig.lab.server;
    assert!(list(host, &[], "/sessions").is_empty());
    let client = fresh_client_v4();
    rig.assert_delivered(&datagram_header_for(client), b"hello?", client);
    let listed = wait_listed(host, &[], "/sessions", |session| session["bytes_in"] == 6);
    let session = &listed[0];
    assert_eq!(session["listener"], LISTEN_V4.to_string());
    assert_eq!(session["protocol"], "udp");
    assert_eq!(session["client"], client.to_string());
    assert_eq!(session["target"], TARGET_V4.to_string());
    assert_eq!(session["state"], "unanswered");
    assert_eq!(session["relay"], "userspace");
    rig.assert_reply(client, b"hi");
    wait_listed(host, &[], "/sessions", |session| {
        session["bytes_out"] == 2 && session["state"] == "answered"
    });

    let clients: Vec<_> = (0..600).map(|_| fresh_client_v4()).collect();
    clients.iter().for_each(|client| rig.round_trip(*client));
    assert_eq!(list(host, &[], "/sessions").len(), 601);
    let path = format!("/sessions?client={}/32&limit=1000", clients[300].ip());
    let wanted = clients[300].to_string();
    let listed = list(host, &[], &path);
    assert!(
        listed
            .iter()
            .any(|session| session["client"] == wanted.as_str()),
        "{listed:?}"
    );
    assert!(list(host, &[], "/connections").is_empty());
}
