//! Claimed sources: a server that trusts its own host must not be shown a remote client as local.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::harness::addr::{FRONT_V4, LISTEN_V4, LISTEN_V6, fresh_client_v4};
use crate::harness::conn::{Conn, End};
use crate::harness::header_bytes;
use crate::harness::rig::exec::{MODES, ServerRig, mapped_ipv6, v1, v2};
use crate::harness::special_sources::{IMPOSSIBLE, LOOPBACK_ADDRESSES};

#[test]
fn special_sources_are_refused() {
    for mode in MODES {
        let served = ServerRig::static_under_notify(mode, "--accept=level", &[]);
        for ip in [IMPOSSIBLE, LOOPBACK_ADDRESSES].concat() {
            let client = client(ip);
            for header in [v1(client), v2(client)] {
                assert_refused(&served, LISTEN_V4, &header, ip);
            }
        }
        served.assert_serves();
    }
}

#[test]
fn special_sources_are_refused_on_an_ipv6_listener() {
    for mode in MODES {
        let served = ServerRig::static_under_notify(mode, "--accept=edge --family=6", &[]);
        for ip in [IMPOSSIBLE, LOOPBACK_ADDRESSES].concat() {
            for listener in [LISTEN_V4, LISTEN_V6] {
                assert_refused(&served, listener, &v2(client(ip)), ip);
            }
        }
    }
}

/// A connection whose header claims such a source is not passed through as one without a header.
#[test]
fn special_sources_are_refused_where_headers_are_optional() {
    for mode in MODES {
        let served = ServerRig::static_under_notify(mode, "--accept=level", &["--header=optional"]);
        for ip in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"] {
            assert_refused(&served, LISTEN_V4, &v2(client(ip)), ip);
        }
    }
}

/// A header for DGRAM does not describe a TCP connection.
#[test]
fn header_for_udp_is_refused() {
    for mode in MODES {
        let served = ServerRig::static_under_notify(mode, "--accept=level", &[]);
        let datagram = header_bytes::v2_udp(fresh_client_v4(), FRONT_V4);
        assert_refused(&served, LISTEN_V4, &datagram, "UDP");
    }
}

/// The header waiter has the same policy as the library.
#[test]
fn special_source_in_a_slow_header_is_refused() {
    for mode in MODES {
        let served = ServerRig::static_under_notify(mode, "--accept=level", &[]);
        for ip in ["127.0.0.1", "::1", "224.0.0.1"] {
            let header = v2(client(ip));
            let conn = served.connect_and_send(&header[..20]);
            conn.assert_stays_open(Duration::from_millis(50));
            conn.send(&header[20..]);
            assert_eq!(conn.wait_closed().0, End::Reset, "{ip}");
        }
    }
}

#[test]
fn local_sources_are_allowed_on_request() {
    for mode in MODES {
        let served = ServerRig::static_under_notify(
            mode,
            "--accept=level --family=6",
            &["--source-policy=allow-local"],
        );
        for ip in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"] {
            let client = client(ip);
            served.assert_report(&served.report_for(&v2(client)), mapped_ipv6(client));
        }
        for ip in IMPOSSIBLE {
            assert_refused(&served, LISTEN_V4, &v2(client(ip)), ip);
        }
    }
}

/// A balancer on the server's own host sends a health check. In version 1 the header can only name the balancer's own address
/// and port, which the server would see without a header, too.
#[test]
fn peer_that_claims_its_own_endpoint_is_treated_as_local() {
    for mode in MODES {
        let served = ServerRig::static_under_notify(mode, "--accept=level", &["--trust=loopback"]);
        let listener = SocketAddr::from(([127, 0, 0, 1], 8443));
        let conn = Conn::connect(&served.lab.server, listener);
        conn.send(&[&header_bytes::v1(conn.local_addr(), FRONT_V4)[..], b"hi"].concat());
        served.assert_sees(&conn, conn.local_addr());
        let conn = Conn::connect(&served.lab.server, listener);
        let other_port = SocketAddr::new(conn.local_addr().ip(), conn.local_addr().port() ^ 1);
        conn.send(&header_bytes::v1(other_port, FRONT_V4));
        conn.wait_reset();
    }
}

fn client(ip: &str) -> SocketAddr {
    let ip: IpAddr = ip.parse().expect("an address");
    SocketAddr::new(ip, 40_010)
}

/// Asserts a reset without output of the server, which reports to every client that it accepts.
#[track_caller]
fn assert_refused(served: &ServerRig, listener: SocketAddr, header: &[u8], claimed: &str) {
    let bytes = [header, b"hello"].concat();
    let conn = Conn::connect_and_send(&served.lab.balancer, listener, &bytes);
    assert_eq!(conn.wait_closed().0, End::Reset, "{claimed}");
}
