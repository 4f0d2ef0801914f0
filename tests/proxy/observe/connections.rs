//! `/connections`: each open connection with its client, its state and its live byte counts; and what may be changed
//! over a Unix socket.

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4, v4};
use crate::harness::admin::{ADMIN, get, list, wait_answer, wait_listed, wait_metric};
use crate::harness::lab::{Scratch, wait_until};
use crate::harness::pattern::{assert_same, pattern};
use crate::harness::rig::proxy::ProxyRig;
use crate::harness::rig::service::{Service, ServiceRig};

#[test]
fn open_connection_is_listed_with_its_addresses_and_state() {
    let rig = ProxyRig::new(&[ADMIN]);
    let host = &rig.lab.server;
    assert_eq!(get(host, &[], "/connections"), "200");
    let waiting = rig.connect_and_send(b"PROXY ");
    let listed = wait_listed(host, &[], "/connections", |connection| {
        connection["state"] == "header"
    });
    assert_eq!(listed[0]["balancer"], waiting.local_addr().to_string());
    assert!(listed[0]["client"].is_null() && listed[0]["relay"].is_null());
    drop(waiting);

    let client = v4([203, 0, 113, 7], 56324);
    let (down, up) = rig.connect_client(client);
    down.assert_reaches(&up, b"ping");
    up.assert_reaches(&down, b"a reply");
    let listed = wait_listed(host, &[], "/connections", |connection| {
        connection["bytes_out"] == 7
    });
    let [connection] = listed.as_slice() else {
        panic!("{listed:?}")
    };
    assert_eq!(connection["listener"], LISTEN_V4.to_string());
    assert_eq!(connection["protocol"], "tcp");
    assert_eq!(connection["balancer"], down.local_addr().to_string());
    assert_eq!(connection["client"], client.to_string());
    assert_eq!(connection["target"], TARGET_V4.to_string());
    assert_eq!(connection["state"], "open");
    assert_eq!(connection["bytes_in"], 4);
    assert_eq!(connection["relay"], "copy");
    assert!(connection["idle_s"].as_f64() <= connection["age_s"].as_f64());

    down.shutdown_write();
    wait_listed(host, &[], "/connections", |connection| {
        connection["state"] == "half_closed"
    });
    let other = rig.connect_client(v4([198, 51, 100, 9], 1234));
    let clients = |query: &str| {
        let listed = list(host, &[], &format!("/connections?{query}"));
        listed
            .iter()
            .map(|connection| connection["client"].as_str().unwrap_or("").to_owned())
            .collect::<Vec<_>>()
    };
    let (first, second) = (client.to_string(), "198.51.100.9:1234".to_owned());
    assert_eq!(clients("client=198.51.100.0/24"), [&*second]);
    assert_eq!(clients("state=half_closed"), [&*first]);
    assert_eq!(clients("sort=bytes"), [&*first, &second]);
    assert_eq!(clients("sort=age&limit=1"), [&*first]);
    assert_eq!(clients("sort=idle&limit=1"), [&*first]);
    assert_eq!(clients("min_idle=0&sort=age"), [&*first, &second]);
    assert!(clients("min_idle=1h").is_empty());
    assert!(clients("listener=192.0.2.1:1").is_empty());
    let balancer = down.local_addr().ip();
    assert_eq!(
        clients(&format!("balancer={balancer}&sort=age&limit=1")),
        [&*first]
    );
    assert!(clients("balancer=192.0.2.0/24").is_empty());
    assert_eq!(clients("client=::ffff:198.51.100.9"), [&*second]);
    let invalid = get(host, &[], "/connections?limit=5&sort=name");
    assert!(
        invalid.contains("sort=name: use") && invalid.ends_with("400"),
        "{invalid}"
    );
    drop((up, other));
}

/// Bytes are counted while they move, whatever method relays them.
#[test]
fn byte_counts_are_live_for_each_relay_method() {
    for method in ["copy", "splice"] {
        let rig = ProxyRig::new(&[ADMIN, &format!("--relay={method}")]);
        let host = &rig.lab.server;
        let (down, up) = rig.connect_client(fresh_client_v4());
        for _ in 0..40 {
            down.assert_reaches(&up, b"ping");
            up.assert_reaches(&down, b"pongs");
        }
        let is_counted = |connection: &Value| {
            connection["bytes_in"] == 160
                && connection["bytes_out"] == 200
                && connection["relay"] == method
        };
        wait_listed(host, &[], "/connections", is_counted);
        let metric = |count| format!("peername_relay_method{{method=\"{method}\"}} {count}");
        wait_metric(host, &[], &metric(1));
        drop((down, up));
        wait_metric(host, &[], &metric(0));
    }
    let rig = ProxyRig::new(&[ADMIN]);
    let (down, up) = rig.connect_client(fresh_client_v4());
    let large = pattern(1, 4 << 20);
    down.send(&large);
    assert_same(&up.recv(large.len()), &large);
    wait_listed(&rig.lab.server, &[], "/connections", |connection| {
        connection["bytes_in"] == 4 << 20 && connection["relay"] == "splice"
    });
}

/// The metrics count the open connections of each worker. The workers have about as many each.
#[test]
fn connections_are_counted_per_worker() {
    let rig = ProxyRig::new(&[ADMIN]);
    let host = &rig.lab.server;
    let open: Vec<_> = (0..40)
        .map(|_| rig.connect_client(fresh_client_v4()))
        .collect();
    let by_worker = || {
        let scrape = get(host, &[], "/metrics");
        let counts = scrape.lines().filter_map(|line| {
            let (_, count) = line
                .strip_prefix("peername_worker_connections{")?
                .split_once(' ')?;
            count.parse::<usize>().ok()
        });
        counts.collect::<Vec<_>>()
    };
    let counts = by_worker();
    assert_eq!((counts.len(), counts.iter().sum()), (2, 40), "{counts:?}");
    assert!(counts[0].abs_diff(counts[1]) <= 8, "{counts:?}");
    assert!(get(host, &[], "/metrics").contains("peername_worker_handoffs_total{worker=\"1\"}"));
    drop(open);
    wait_until("no connection", || by_worker() == [0, 0]);
}

/// An operator who waits for the last connections has to see which they are.
#[test]
fn draining_proxy_lists_its_connections() {
    let rig = ProxyRig::new(&[ADMIN, "--drain=60s"]);
    let host = &rig.lab.server;
    let client = fresh_client_v4();
    let open = rig.connect_client(client);
    rig.proxy.signal(Signal::TERM);
    wait_answer(host, "/readyz", "draining\n503");
    wait_listed(host, &[], "/connections", |connection| {
        connection["client"] == client.to_string()
    });
    drop(open);
}

#[test]
fn forward_lists_and_counts_its_connections() {
    let rig = ServiceRig::start(Service::Forward, &[ADMIN]);
    let host = &rig.lab.server;
    let (down, up) = rig.connect();
    wait_metric(host, &[], "peername_connections_active 1");
    assert_eq!(get(host, &[], "/readyz"), "ready\n200");
    let listed = wait_listed(host, &[], "/connections", |connection| {
        connection["state"] == "open"
    });
    assert_eq!(listed[0]["client"], down.local_addr().to_string());
    assert_eq!(listed[0]["target"], TARGET_V4.to_string());
    drop((down, up));
    wait_metric(host, &[], "peername_connections_active 0");
}

/// DELETE over the Unix socket closes both sides of that connection only, and the log names the user and process that sent it.
/// Over TCP it is refused.
#[test]
fn connection_is_ended_over_a_unix_socket_only() {
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let rig = ProxyRig::new(&[&format!("--admin=unix:{path}")]);
    let host = &rig.lab.server;
    let unix = ["--unix-socket", &path];
    let delete = ["--unix-socket", &path, "-X", "DELETE"];
    let connections: Vec<_> = (0..6)
        .map(|_| rig.connect_client(fresh_client_v4()))
        .collect();
    let wanted = connections[3].1.peer_addr().to_string();
    let all = list(host, &unix, "/connections");
    assert_eq!(all.len(), 6);
    let connection = all
        .iter()
        .find(|connection| connection["client"] == wanted.as_str())
        .expect("the connection");
    let id = format!("/connections/{}", connection["id"]);
    assert_eq!(get(host, &delete, &id), "ended\n200");
    connections[3].0.wait_closed();
    connections[3].1.wait_closed();
    rig.proxy.wait_outcome("closed_by_admin");
    let ended = format!("connection {} was ended", connection["id"]);
    rig.proxy.wait_line("the process that ended it", |line| {
        let line: Value = serde_json::from_str(line).ok()?;
        let is_audit = line["message"].as_str()?.contains(&ended) && line["level"] == "INFO";
        let names = [
            ("client", "client"),
            ("peer", "balancer"),
            ("upstream", "target"),
        ];
        let has_addresses = names
            .iter()
            .all(|(field, listed)| line[field] == connection[listed]);
        (is_audit && has_addresses && line["uid"] == 0 && line["pid"].as_u64()? > 1).then_some(())
    });
    assert_eq!(list(host, &unix, "/connections").len(), 5);
    assert!(get(host, &delete, &id).ends_with("404"));
    assert!(get(host, &delete, "/connections/x").ends_with("400"));
    let session = get(host, &delete, "/sessions/1");
    assert!(
        session.contains("only connections can be ended") && session.ends_with("404"),
        "{session}"
    );
    connections[2].0.assert_reaches(&connections[2].1, b"ping");

    let rig = ProxyRig::new(&[ADMIN]);
    let (down, up) = rig.connect_client(fresh_client_v4());
    for args in [&["-X", "DELETE"][..], &["-X", "PUT", "-d", "info"]] {
        let answer = get(&rig.lab.server, args, "/connections/0");
        assert!(
            answer.contains("Unix socket only") && answer.ends_with("403"),
            "{answer}"
        );
    }
    down.assert_reaches(&up, b"ping");
}
