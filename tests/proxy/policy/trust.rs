//! Trust: only peers that are listed may name a client.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::harness::addr::{
    BALANCER_V4, BALANCER_V6, LISTEN_V4, LISTEN_V6, TARGET_V4, fresh_client_v4, v6,
};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Lab, Scratch, assert_contains, assert_within, stderr_text};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::connect_client;

#[test]
fn proxy_does_not_start_without_trust() {
    let host = Host::new();
    let error = Peername::run_failing(
        &host,
        &["proxy", "--target=127.0.0.1:1", "--listen=127.0.0.1:8443"],
        2,
    );
    assert_contains(&error, &["--trust"]);
}

#[test]
fn proxy_does_not_start_with_an_invalid_trust_list() {
    let host = Host::new();
    let scratch = Scratch::new();
    let empty = scratch.write("empty", "# empty\n\n");
    let garbage = scratch.write("garbage", "10.0.0.0/8\n10.0.0.0/33\n");
    let missing = scratch.path_text("missing");
    for (list, hint) in [
        (&empty, "empty"),
        (&garbage, "10.0.0.0/33"),
        (&missing, "missing"),
    ] {
        let output = Peername::run(
            &host,
            &["proxy", "--listen=127.0.0.1:0", "-t", &format!("@{list}")],
        );
        assert!(
            matches!(output.status.code(), Some(1 | 2)),
            "{hint}: {output:?}"
        );
        let error = stderr_text(&output);
        assert!(error.contains(hint), "{hint}: {error}");
    }
}

/// Trust is decided by the real peer: the proxy closes the connection without waiting for the header.
#[test]
fn untrusted_peer_is_closed_unread() {
    for trust in [
        &["--trust=10.81.0.3", "--trust=fd81::3"][..],
        &["--trust=192.0.2.0/24"],
    ] {
        let lab = Lab::new();
        let backend = Backend::listen(&lab.server, TARGET_V4);
        let _proxy = proxy(&lab, trust);
        for listen in [LISTEN_V4, LISTEN_V6] {
            assert_within(3, Duration::from_secs(1), || {
                let start = Instant::now();
                Conn::assert_refused(&lab.balancer, listen);
                start.elapsed()
            });
        }
        backend.assert_no_connection();
    }
}

/// A list may have comments, blank lines, addresses without a prefix length, and networks with host bits set.
#[test]
fn trust_list_allows_comments_and_host_bits() {
    let list = Scratch::new();
    let path = list.write(
        "trusted",
        "# the balancers\n\n  10.81.0.2   # in the office\n192.0.2.1/24\r\nfd81::2/64\n",
    );
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let _proxy = proxy(&lab, &[&format!("--trust=@{path}")]);
    for listen in [LISTEN_V4, LISTEN_V6] {
        assert_served(&lab, &backend, listen);
    }
}

#[test]
fn trust_keywords_name_networks() {
    for (keyword, is_trusted) in [("any", true), ("private", true), ("loopback", false)] {
        let lab = Lab::new();
        let backend = Backend::listen(&lab.server, TARGET_V4);
        let _proxy = proxy(&lab, &[&format!("--trust={keyword}")]);
        for listen in [LISTEN_V4, LISTEN_V6] {
            if is_trusted {
                assert_served(&lab, &backend, listen);
            } else {
                Conn::assert_refused(&lab.balancer, listen);
                backend.assert_no_connection();
            }
        }
    }
}

/// A listener for both families sees IPv4 peers as ::ffff:10.81.0.2; the list has 10.81.0.2.
#[test]
fn ipv4_trust_list_works_on_a_dual_stack_listener() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let wildcard = v6([0; 8], 8443);
    let args = words("proxy --listen=[::]:8443 --target-v4=127.0.0.1:9000 --trust=10.81.0.2");
    let _proxy = Peername::start(&lab.server, &args, &[wildcard]);
    assert_served(&lab, &backend, LISTEN_V4);
    Conn::assert_refused(&lab.balancer, LISTEN_V6);
}

/// The list holds peers, not claimed sources: a listed address that a header claims makes no peer trusted.
#[test]
fn claimed_source_is_not_a_trusted_peer() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let client = fresh_client_v4();
    let trust = format!("--trust={}", client.ip());
    let _proxy = proxy(&lab, &[&trust]);
    Conn::assert_refused(&lab.balancer, LISTEN_V4);
    backend.assert_no_connection();
}

fn proxy(lab: &Lab, trust: &[&str]) -> Peername {
    let args = [
        "proxy",
        "--listen=10.81.0.1:8443",
        "--listen=[fd81::1]:8443",
        "--target-v4=127.0.0.1:9000",
        // So that an untrusted peer is not closed by the timeout.
        "--header-timeout=60s",
    ];
    Peername::start(
        &lab.server,
        &[&args, trust].concat(),
        &[LISTEN_V4, LISTEN_V6],
    )
}

#[track_caller]
fn assert_served(lab: &Lab, backend: &Backend, listen: SocketAddr) {
    let client = fresh_client_v4();
    let down = connect_client(lab, listen, client);
    let balancer = if listen.is_ipv4() {
        BALANCER_V4
    } else {
        BALANCER_V6
    };
    assert_eq!(down.local_addr().ip(), balancer);
    assert_eq!(backend.accept().peer_addr(), client);
}
