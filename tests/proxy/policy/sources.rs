//! Claimed sources: a backend never sees an address other than the one in the header.
//!
//! A transparent socket may be bound to 0.0.0.0, to a broadcast or to a multicast address; the kernel then
//! selects a source itself, and a remote client becomes 127.0.0.1. HAProxy and go-mmproxy let that happen.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::harness::addr::{
    FRONT_V4, FRONT_V6, LISTEN_V4, LISTEN_V6, fresh_client_v4, fresh_client_v6, v4,
};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::wait_for;
use crate::harness::rig::proxy::{ProxyRig, connect_client};
use crate::harness::special_sources::{
    IMPOSSIBLE, LOOPBACK_ADDRESSES, SERVER_ADDRESSES, SUBNET_ENDS,
};

#[test]
fn special_sources_are_refused() {
    let mut rig = ProxyRig::new(&[]);
    for listen in [LISTEN_V4, LISTEN_V6] {
        for ip in [
            IMPOSSIBLE,
            SUBNET_ENDS,
            LOOPBACK_ADDRESSES,
            SERVER_ADDRESSES,
        ]
        .concat()
        {
            assert_refused(&rig, listen, ip);
        }
    }
    rig.assert_serves(fresh_client_v4());
}

/// With `--source-policy=allow-local`, a header may name an address of this host as the client, and the backend sees it.
/// Addresses that no host can have stay refused.
#[test]
fn local_sources_are_allowed_on_request() {
    let rig = ProxyRig::new(&["--source-policy=allow-local"]);
    for listen in [LISTEN_V4, LISTEN_V6] {
        for ip in ["127.0.0.1", "127.1.2.3", "10.81.0.1", "::1", "fd81::1"] {
            let ip = ip.parse().expect("an address");
            let client = SocketAddr::new(ip, fresh_client_v4().port());
            let _down = connect_client(&rig.lab, listen, client);
            rig.accept_client(client);
        }
        for ip in [IMPOSSIBLE, SUBNET_ENDS].concat() {
            assert_refused(&rig, listen, ip);
        }
    }
}

/// Pods of some clouds have addresses of 240.0.0.0/4.
#[test]
fn reserved_sources_are_allowed_on_request() {
    let rig = ProxyRig::new(&["--source-policy=allow-reserved"]);
    for ip in ["240.10.0.7", "254.1.2.3", "::ffff:240.10.0.8"] {
        let ip: IpAddr = ip.parse().expect("an address");
        let client = SocketAddr::new(ip, fresh_client_v4().port());
        let _down = connect_client(&rig.lab, LISTEN_V4, client);
        rig.accept_client(SocketAddr::new(ip.to_canonical(), client.port()));
    }
    for ip in [
        LOOPBACK_ADDRESSES,
        SERVER_ADDRESSES,
        SUBNET_ENDS,
        &["255.255.255.255"],
    ]
    .concat()
    {
        assert_refused(&rig, LISTEN_V4, ip);
    }
}

/// Refused are a client on this host that comes back through the balancer (hairpin), and a reserved address.
#[test]
fn refusal_of_a_source_names_the_policy_that_allows_it() {
    for (ip, policy) in [
        ("10.81.0.1", "allow-local"),
        ("240.0.0.1", "allow-reserved"),
    ] {
        let rig = ProxyRig::new(&[]);
        assert_refused(&rig, LISTEN_V4, ip);
        let hint = format!("--source-policy {policy}");
        rig.proxy.wait_logged(&hint);
    }
}

/// An IPv4-mapped IPv6 source is an ordinary IPv4 client (HAProxy sends it when families are mixed).
#[test]
fn ipv4_mapped_source_is_an_ipv4_client() {
    let rig = ProxyRig::new(&[]);
    for listen in [LISTEN_V4, LISTEN_V6] {
        let client = fresh_client_v4();
        let header = header_bytes::v2(ipv4_mapped(client), ipv4_mapped(FRONT_V4), &[]);
        let _down = Conn::connect_and_send(&rig.lab.balancer, listen, &header);
        rig.accept_client(client);
    }
}

/// Clients of either family behind balancers of either family.
#[test]
fn client_and_balancer_may_differ_in_family() {
    for fresh in [fresh_client_v4, fresh_client_v6] {
        for listen in [LISTEN_V4, LISTEN_V6] {
            let client = fresh();
            let rig = ProxyRig::new(&[]);
            let down = connect_client(&rig.lab, listen, client);
            let up = rig.accept_client(client);
            up.assert_reaches(&down, b"hello");
        }
    }
}

/// A client's port is kept even if it is privileged, as NFS, rsh and DNS clients have it.
#[test]
fn privileged_source_ports_are_kept() {
    let rig = ProxyRig::new(&[]);
    for port in [1, 53, 1023] {
        rig.connect_client(SocketAddr::new(fresh_client_v4().ip(), port));
        rig.connect_client(SocketAddr::new(fresh_client_v6().ip(), port));
    }
}

/// Addresses that the host gains while the proxy runs are its own, too.
#[test]
fn new_local_addresses_are_refused_as_sources() {
    let rig = ProxyRig::new(&[]);
    rig.lab
        .server
        .ip("address add 192.0.2.77/24 broadcast + dev eth0");
    wait_for("the new address is noticed", || {
        let client = v4([192, 0, 2, 77], fresh_client_v4().port());
        let down = connect_client(&rig.lab, LISTEN_V4, client);
        match rig.backend_v4.accept_or_closed(&down) {
            Some(up) => assert_eq!(up.peer_addr(), client),
            None => return Some(down.wait_closed()),
        }
        None
    });
    assert_refused(&rig, LISTEN_V4, "192.0.2.255");
}

fn ipv4_mapped(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), addr.port()),
        IpAddr::V6(_) => addr,
    }
}

/// Asserts that a connection that claims `ip` is closed and that no backend gets a connection.
#[track_caller]
fn assert_refused(rig: &ProxyRig, listen: SocketAddr, ip: &str) {
    let ip: IpAddr = ip.parse().expect("an address");
    let client = SocketAddr::new(ip, 40010);
    let front = if client.is_ipv4() { FRONT_V4 } else { FRONT_V6 };
    let down = Conn::connect_and_send(
        &rig.lab.balancer,
        listen,
        &header_bytes::v2(client, front, &[]),
    );
    for backend in [&rig.backend_v4, &rig.backend_v6] {
        assert_no_connection_as(backend, client);
    }
    down.wait_closed();
    rig.assert_no_backend_connection();
}

#[track_caller]
fn assert_no_connection_as(backend: &Backend, claimed: SocketAddr) {
    if let Some(conn) = backend.accept_within(Duration::from_millis(1)) {
        panic!(
            "claimed {claimed}, and the backend saw {}",
            conn.peer_addr()
        );
    }
}
