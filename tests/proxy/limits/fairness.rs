//! Fairness: a peer or client that takes all connections it can get leaves some for the others.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4, server_v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Scratch, wait_until};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::{ProxyRig, connect_client, header_for};

/// Silent connections of one trusted peer leave most of a small connection limit to the others.
#[test]
fn silent_peer_does_not_delay_the_others() {
    let few_descriptors = ["prlimit", "--nofile=512:512"];
    let rig = ProxyRig::start_through(&few_descriptors, &["--header-timeout=60s"]);
    let _silent: Vec<_> = (0..600)
        .filter_map(|_| Conn::try_connect(&rig.lab.balancer, LISTEN_V4))
        .collect();
    for _ in 0..10 {
        let (client, start) = (fresh_client_v4(), Instant::now());
        // Another peer in a trusted network.
        let _down = Conn::connect_and_send(&rig.lab.server, LISTEN_V4, &header_for(client));
        assert_eq!(rig.backend_v4.accept().peer_addr(), client);
        let elapsed = start.elapsed();
        assert!(elapsed < Duration::from_secs(1), "{elapsed:?}");
    }
    rig.proxy.wait_outcome("too_many_pending");
}

/// One client of `forward` can't have all connections.
#[test]
fn forward_leaves_connections_for_other_clients() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let few_descriptors = ["prlimit", "--nofile=512:512"];
    let forward =
        Peername::start_through(&lab.server, &few_descriptors, FORWARD_ARGS, &[LISTEN_V4]);
    let _greedy: Vec<_> = (0..400)
        .filter_map(|_| Conn::try_connect(&lab.balancer, LISTEN_V4))
        .collect();
    let _served = forward.accept_until_full(&backend);
    for _ in 0..10 {
        let start = Instant::now();
        let _down = Conn::connect_and_send(&lab.server, LISTEN_V4, b"hello");
        let up = backend.accept();
        up.recv_text_until(|text| text.ends_with("hello"));
        let elapsed = start.elapsed();
        assert!(elapsed < Duration::from_secs(1), "{elapsed:?}");
    }
    forward.wait_logged("too_many_connections");
}

/// A reload that adds UDP leaves fewer connections to TCP. One client of `forward` can't have all of these either.
#[test]
fn forward_leaves_connections_for_other_clients_after_a_reload() {
    let table = |listen, more| {
        format!("[[forward]]\nlisten = [\"{listen}\"]\nto = \"{TARGET_V4}\"\n{more}")
    };
    let udp = [table(server_v4(8101), "protocol = \"udp\"\n")];
    let rig = ReloadedRig::new("forward", table(LISTEN_V4, ""), &udp);
    let _greedy = rig.open_all();
    let _served = rig.process.accept_until_full(&rig.backend);
    rig.assert_serves_another_peer();
    rig.process.wait_logged("too_many_connections");
}

/// Nor can a peer that sends no headers.
#[test]
fn silent_peer_does_not_delay_the_others_after_reloads() {
    let table = |listen, more| {
        format!(
            "[[listen]]\nlisten = [\"{listen}\"]\ntarget = \"{TARGET_V4}\"\ntrust = [\"10.81.0.0/24\"]\n{more}"
        )
    };
    let udp = [8101, 8102, 8103].map(|port| table(server_v4(port), "protocol = \"udp\"\n"));
    let tcp = table(LISTEN_V4, "header-timeout = \"60s\"\n");
    let rig = ReloadedRig::new("proxy", tcp, &udp);
    let _silent = rig.open_all();
    rig.assert_serves_another_peer();
    rig.process.wait_logged("too_many_pending");
}

/// A command with few descriptors, to which reloads have added tables.
struct ReloadedRig {
    process: Peername,
    backend: Backend,
    lab: Lab,
}

impl ReloadedRig {
    fn new(command: &str, mut tables: String, added: &[String]) -> Self {
        let (lab, files) = (Lab::new(), Scratch::new());
        let backend = Backend::listen(&lab.server, TARGET_V4);
        let config = files.write("tables.toml", &tables);
        let few_descriptors = ["prlimit", "--nofile=512:512"];
        let args = [command, "--config", &config];
        let process = Peername::start_through(&lab.server, &few_descriptors, &args, &[LISTEN_V4]);
        for table in added {
            tables += table;
            files.write("tables.toml", &tables);
            process.reload("reloaded");
        }
        Self {
            process,
            backend,
            lab,
        }
    }

    /// Opens as many connections of one peer as it can get.
    fn open_all(&self) -> Vec<Conn> {
        (0..400)
            .filter_map(|_| Conn::try_connect(&self.lab.balancer, LISTEN_V4))
            .collect()
    }

    #[track_caller]
    fn assert_serves_another_peer(&self) {
        for _ in 0..5 {
            let start = Instant::now();
            let header = header_for(fresh_client_v4());
            let _down = Conn::connect_and_send(&self.lab.server, LISTEN_V4, &header);
            let _up = self.backend.accept();
            let elapsed = start.elapsed();
            assert!(elapsed < Duration::from_secs(1), "{elapsed:?}");
        }
    }
}

/// `--idle-timeout` ends a connection of `forward` on which no byte moves in either direction, even after its client's FIN.
#[test]
fn forward_ends_idle_connections() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let args = [
        FORWARD_ARGS,
        &["--idle-timeout=2s", "--log-format=json", "-v"],
    ]
    .concat();
    let forward = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    for is_half_closed in [false, true] {
        let down = Conn::connect(&lab.balancer, LISTEN_V4);
        let _up = backend.accept();
        if is_half_closed {
            down.shutdown_write();
        }
        down.assert_stays_open(Duration::from_secs(1));
        down.wait_closed();
    }
    wait_until("the outcomes", || forward.outcomes() == ["idle"; 2]);
}

/// Freed permits go to the listeners in turn, so the client of an idle listener waits for few of them.
#[test]
fn busy_listener_does_not_starve_the_others() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let other = server_v4(8444);
    let args = words(
        "proxy --listen=10.81.0.1:8443 --listen=10.81.0.1:8444 --target-v4=127.0.0.1:9000 \
         --trust=10.81.0.0/24 --workers=1",
    );
    let few_descriptors = ["prlimit", "--nofile=64:64"];
    let proxy = Peername::start_through(&lab.server, &few_descriptors, &args, &[LISTEN_V4, other]);
    proxy.wait_started();
    let open = |to, client| connect_client(&lab, to, client);
    let _busy: Vec<Conn> = (0..60)
        .map(|_| open(LISTEN_V4, fresh_client_v4()))
        .collect();
    let mut served = VecDeque::from(proxy.accept_until_full(&backend));
    assert!((5..40).contains(&served.len()), "{} served", served.len());
    let client = fresh_client_v4();
    let _down = open(other, client);
    let mut serve_next = || {
        served.pop_front().expect("an open connection").reset();
        let up = backend.accept();
        let peer = up.peer_addr();
        served.push_back(up);
        peer
    };
    let position = (1..=15).find(|_| serve_next() == client);
    assert!(
        position.is_some_and(|position| position <= 3),
        "served as number {position:?}"
    );
}

const FORWARD_ARGS: &[&str] = &["forward", "--listen=10.81.0.1:8443", "--to=127.0.0.1:9000"];
