//! Claimed sources, where the supervisor accepts.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::harness::addr::{LISTEN_V4, LISTEN_V6, fresh_client_v4};
use crate::harness::conn::{Conn, End};
use crate::harness::header_bytes;
use crate::harness::rig::exec_notify::{NotifyRig, recv_addresses};
use crate::harness::rig::proxy::header_for;
use crate::harness::special_sources::{IMPOSSIBLE, LOOPBACK_ADDRESSES};

#[test]
fn special_sources_are_refused() {
    let exec = NotifyRig::start_variant("edge", "6", &[]);
    for ip in [IMPOSSIBLE, LOOPBACK_ADDRESSES].concat() {
        for listener in [LISTEN_V4, LISTEN_V6] {
            assert_refused(&exec, listener, ip);
        }
    }
    let client = fresh_client_v4();
    assert_eq!(exec.report_for(&header_for(client)), shown_as(client));
}

#[test]
fn special_sources_are_refused_on_an_ipv4_listener() {
    for options in [&[][..], &["--header=optional"]] {
        let exec = NotifyRig::start_variant("block", "4", options);
        for ip in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"] {
            assert_refused(&exec, LISTEN_V4, ip);
        }
    }
}

#[test]
fn special_source_in_a_slow_header_is_refused() {
    let exec = NotifyRig::start_variant("level", "4", &[]);
    for ip in ["127.0.0.1", "::1", "224.0.0.1"] {
        let header = header_for(client(ip));
        let conn = exec.connect_and_send(&header[..20]);
        conn.assert_stays_open(Duration::from_millis(50));
        conn.send(&header[20..]);
        assert_eq!(conn.wait_closed().0, End::Reset, "{ip}");
    }
}

#[test]
fn local_sources_are_allowed_on_request() {
    let exec = NotifyRig::start_variant("threads", "6", &["--source-policy=allow-local"]);
    for ip in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"] {
        let client = client(ip);
        assert_eq!(
            exec.report_for(&header_for(client)),
            shown_as(client),
            "{ip}"
        );
    }
    for ip in IMPOSSIBLE {
        assert_refused(&exec, LISTEN_V4, ip);
    }
}

/// See the library's test of the same name.
#[test]
fn peer_that_claims_its_own_endpoint_is_treated_as_local() {
    let exec = NotifyRig::start_variant("block", "4", &["--trust=loopback"]);
    let listener = SocketAddr::from(([127, 0, 0, 1], 8443));
    let conn = Conn::connect(&exec.lab.server, listener);
    conn.send(&header_bytes::v1(conn.local_addr(), listener));
    assert_eq!(recv_addresses(&conn), [conn.local_addr(); 2]);
    let conn = Conn::connect(&exec.lab.server, listener);
    let beside = SocketAddr::new(conn.local_addr().ip(), conn.local_addr().port() ^ 1);
    conn.send(&header_bytes::v1(beside, listener));
    assert_eq!(conn.wait_closed().0, End::Reset);
}

fn client(ip: &str) -> SocketAddr {
    let ip: IpAddr = ip.parse().expect("an address");
    SocketAddr::new(ip, 40_010)
}

/// As an IPv6 socket shows it, by accept(2) and by getpeername(2).
fn shown_as(client: SocketAddr) -> [SocketAddr; 2] {
    let ip = match client.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
        v6 => v6,
    };
    [SocketAddr::new(ip, client.port()); 2]
}

/// Asserts a reset without output: the program greets every client it sees.
#[track_caller]
fn assert_refused(exec: &NotifyRig, listener: SocketAddr, claimed: &str) {
    let header = header_for(client(claimed));
    let conn = Conn::connect_and_send(&exec.lab.balancer, listener, &header);
    assert_eq!(conn.wait_closed().0, End::Reset, "{claimed}");
}
