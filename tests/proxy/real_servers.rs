//! Unmodified servers behind unmodified balancers see the true client, address and port, over IPv4 and IPv6.
//!
//! Balancer, peername and server run on hosts of their own ([`crate::harness::lab`]); the evidence is the
//! address that the server itself reports.

use crate::harness::addr::{
    CLIENT_V4, CLIENT_V6, FRONT_V4, FRONT_V6, LISTEN_V4, LISTEN_V6, TARGET_V4, TARGET_V6,
    fresh_client_v4, fresh_client_v6,
};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::Lab;
use crate::harness::peername::Peername;
use crate::harness::programs::sender::{Haproxy, NginxStream, curl_with_header};
use crate::harness::programs::server::{Nginx, Node, Postgres, Python, Redis, Server, Socat, Sshd};
use crate::harness::rig::proxy::{ProxyRig, front_of};

macro_rules! servers {
    ($($name:ident $server:ident)*) => { $(
        #[test]
        fn $name() {
            assert_sees_the_client::<$server>();
        }
    )* };
}

// The `pg_hba.conf` of Postgres admits the clients' addresses only, so a connection from anywhere else fails.
servers! {
    nginx_sees_the_client Nginx
    redis_sees_the_client Redis
    sshd_sees_the_client Sshd
    postgres_sees_the_client Postgres
    socat_sees_the_client Socat
    python_sees_the_client Python
    node_sees_the_client Node
}

/// Of either version, and with a checksum and a unique id.
#[test]
fn haproxy_headers_are_understood() {
    for server_options in [
        "send-proxy",
        "send-proxy-v2",
        "send-proxy-v2 proxy-v2-options crc32c,unique-id",
    ] {
        for listen in [LISTEN_V4, LISTEN_V6] {
            let lab = Lab::new();
            let server = Python::start(&lab.server);
            let _proxy = Peername::proxy(&lab, &[]);
            let _haproxy = Haproxy::start(&lab, listen, server_options);
            assert_true_clients(&lab, &server);
        }
    }
}

/// The header carries the TLS parameters of the client's connection: version, cipher, server name.
#[test]
fn haproxy_header_with_tls_fields_is_understood() {
    let options = "ssl,cert-cn,ssl-cipher,cert-sig,cert-key,authority,crc32c";
    for send in [
        "send-proxy-v2-ssl",
        &format!("send-proxy-v2 proxy-v2-options {options}"),
    ] {
        let lab = Lab::new();
        let server = Nginx::start(&lab.server);
        let _proxy = Peername::proxy(&lab, &[]);
        let _haproxy = Haproxy::start_tls(&lab, LISTEN_V4, send);
        lab.client.run("curl", &["-sSk", "https://203.0.113.1:80/"]);
        assert_eq!(server.logged_client(0), CLIENT_V4, "{send}");
        lab.client
            .run("curl", &["-sSk", "https://[2001:db8:9::1]:80/"]);
        assert_eq!(server.logged_client(1), CLIENT_V6, "{send}");
    }
}

/// With headers of either version, HAProxy's health checks reach the server: HAProxy reports it up, and down once it has
/// stopped. Clients keep their addresses.
#[test]
fn haproxy_health_checks_reach_the_server() {
    for send in [
        "check-send-proxy send-proxy",
        "check-send-proxy send-proxy-v2",
    ] {
        let lab = Lab::new();
        let server = Redis::start(&lab.server);
        let _proxy = Peername::proxy(&lab, &[]);
        let haproxy = Haproxy::start_checking_redis(&lab, LISTEN_V4, send);
        haproxy.wait_server_state(&lab, "UP");
        let reported = server.reported_client(&lab.client, FRONT_V4);
        assert_eq!(reported, CLIENT_V4, "{send}");
        drop(server);
        haproxy.wait_server_state(&lab, "DOWN");
    }
}

/// nginx may take the client from a header that it receives (realip). If the client's family then differs from that of
/// nginx's listener, nginx sends a header of two families.
#[test]
fn nginx_stream_header_of_two_families_is_understood() {
    let rig = ProxyRig::new(&[]);
    let _nginx = NginxStream::start_behind_balancer(&rig.lab, LISTEN_V4);
    for front in [FRONT_V4, FRONT_V6] {
        for client in [fresh_client_v4(), fresh_client_v6()] {
            let header = header_bytes::v1(client, front_of(client));
            let down = Conn::connect_and_send(&rig.lab.balancer, front, &header);
            let up = rig.accept_client(client);
            up.assert_reaches(&down, b"hello");
        }
    }
}

#[test]
fn nginx_stream_header_is_understood() {
    for listen in [LISTEN_V4, LISTEN_V6] {
        let lab = Lab::new();
        let server = Python::start(&lab.server);
        let _proxy = Peername::proxy(&lab, &[]);
        let _nginx = NginxStream::start(&lab, listen);
        assert_true_clients(&lab, &server);
    }
}

#[test]
fn curl_header_is_understood() {
    let lab = Lab::new();
    let server = Nginx::start(&lab.server);
    let _proxy = Peername::proxy(&lab, &[]);
    for (request, listen) in [LISTEN_V4, LISTEN_V6].into_iter().enumerate() {
        let claimed = curl_with_header(&lab, listen);
        assert_eq!(server.logged_client(request), claimed);
    }
}

/// The control: without peername a server reports its direct peer, so the clients in the tests above come from peername.
#[test]
fn without_peername_a_server_sees_its_peer() {
    let lab = Lab::new();
    lab.server
        .sysctl("net.ipv4.ip_local_port_range", "40099 40099");
    let server = Python::start(&lab.server);
    assert_eq!(
        server.reported_client(&lab.server, TARGET_V4).to_string(),
        "127.0.0.1:40099"
    );
    assert_eq!(
        server.reported_client(&lab.server, TARGET_V6).to_string(),
        "[::1]:40099"
    );
}

/// The control: the headers that other tests make by hand equal HAProxy's.
#[test]
fn without_peername_the_header_reaches_the_backend() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, LISTEN_V4);
    let _haproxy = Haproxy::start(&lab, LISTEN_V4, "send-proxy-v2");
    let _client = Conn::connect_and_send(&lab.client, FRONT_V4, b"x");
    let expected = header_bytes::v2(CLIENT_V4, FRONT_V4, &[]);
    assert_eq!(backend.accept().recv(expected.len()), expected);
}

fn assert_sees_the_client<S: Server>() {
    let lab = Lab::new();
    let server = S::start(&lab.server);
    let _proxy = Peername::proxy(&lab, &[]);
    let _haproxy = Haproxy::start(&lab, LISTEN_V4, "send-proxy-v2");
    assert_true_clients(&lab, &server);
}

fn assert_true_clients(lab: &Lab, server: &impl Server) {
    assert_eq!(server.reported_client(&lab.client, FRONT_V4), CLIENT_V4);
    assert_eq!(server.reported_client(&lab.client, FRONT_V6), CLIENT_V6);
}
