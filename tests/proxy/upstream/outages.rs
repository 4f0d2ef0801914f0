//! An outage of a backend is logged without `-v`, with the backend and the cause; its end is logged, too.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::harness::addr::{FRONT_V4, LISTEN_V4, TARGET_V4, fresh_client_v4, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{Lab, assert_contains};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::connect_client;

#[test]
fn outage_of_a_backend_and_its_end_are_logged() {
    for (cause, rules, target) in [
        ("Connection refused", "", TARGET_V4),
        ("no answer within 300ms", BLACK_HOLE, TARGET_V4),
        ("unreachable", "", UNROUTED),
    ] {
        let lab = Lab::new();
        lab.server.nft(rules);
        let line = format!(
            "proxy --listen=10.81.0.1:8443 --trust=any --log-format=json --connect-timeout=300ms \
             --target-v4={target}"
        );
        let args = words(&line);
        let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
        let open = || connect_client(&lab, LISTEN_V4, fresh_client_v4());
        for _ in 0..5 {
            open().wait_closed();
        }
        let down = wait_line_about(&proxy, "accepts no clients");
        assert_contains(&down, &["WARN", &format!("backend {target} "), cause]);
        let log = proxy.log();
        assert_eq!(log.matches("accepts no clients").count(), 1, "{log}");
        if target == UNROUTED {
            // No backend can accept there.
            continue;
        }
        let backend = Backend::listen(&lab.server, TARGET_V4);
        lab.server.nft("flush ruleset");
        let _down = open();
        backend.accept();
        let up = wait_line_about(&proxy, "accepts again");
        let up: Value = serde_json::from_str(&up).expect("JSON");
        assert_eq!(up["failed"], 5, "{up}");
    }
}

/// The line is repeated while the outage lasts, so that the end of a log shows it.
#[test]
fn outage_is_logged_in_each_interval() {
    let lab = Lab::new();
    let proxy = Peername::start(&lab.server, PROXY, &[LISTEN_V4]);
    // For 12 s: longer than one interval of the throttled log, and shorter than two.
    for _ in 0..24 {
        connect_client(&lab, LISTEN_V4, fresh_client_v4()).wait_closed();
        thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(proxy.log().matches("accepts no clients").count(), 2);
}

#[test]
fn forward_logs_an_outage() {
    let lab = Lab::new();
    let args = words("forward --listen=203.0.113.1:80 --to=10.81.0.1:8443 --log-format=json");
    let forward = Peername::start(&lab.balancer, &args, &[FRONT_V4]);
    Conn::assert_refused(&lab.client, FRONT_V4);
    wait_line_about(&forward, "backend 10.81.0.1:8443 accepts no clients");
    let backend = Backend::listen(&lab.server, LISTEN_V4);
    // The client's only port may still be in TIME_WAIT towards the balancer.
    let _down = Conn::connect(&lab.balancer, FRONT_V4);
    backend.accept();
    wait_line_about(&forward, "backend 10.81.0.1:8443 accepts again");
}

/// Over UDP, an ICMP error begins the outage, and a reply ends it.
#[test]
fn outage_of_a_udp_backend_is_logged() {
    let lab = Lab::new();
    let proxy = Peername::start_listening(&lab.server, &[PROXY, &["--protocol=udp"]].concat());
    let balancer = DatagramSocket::bind(&lab.balancer, v4([10, 81, 0, 2], 0));
    let client = fresh_client_v4();
    let header = header_bytes::v2_udp(client, FRONT_V4);
    balancer.send(LISTEN_V4, &[&header, b"ping"]);
    wait_line_about(&proxy, "backend 127.0.0.1:9000/udp accepts no clients");
    let backend = DatagramSocket::bind(&lab.server, TARGET_V4);
    balancer.round_trip(LISTEN_V4, &header, &backend, client);
    wait_line_about(&proxy, "backend 127.0.0.1:9000/udp accepts again");
}

#[track_caller]
fn wait_line_about(process: &Peername, what: &str) -> String {
    process.wait_logged(what)
}

const PROXY: &[&str] = &[
    "proxy",
    "--listen=10.81.0.1:8443",
    "--target-v4=127.0.0.1:9000",
    "--trust=any",
    "--log-format=json",
];
/// An address without a route.
const UNROUTED: SocketAddr = v4([192, 0, 2, 77], 9000);
const BLACK_HOLE: &str = "
table inet hole {
    chain input {
        type filter hook input priority 0;
        tcp dport 9000 drop
    }
}
";
