//! What the proxy adds to a connection to the backend on request: a mark, an outbound header.

use crate::harness::addr::{FRONT_V4, LISTEN_V4, TARGET_V4, fresh_client_v4, fresh_client_v6, v6};
use crate::harness::backend::Backend;
use crate::harness::conn::{Conn, End};
use crate::harness::header_bytes::{LOCAL, STREAM_V4, raw, tlv, v1, v2};
use crate::harness::lab::{Lab, Process, Scratch, wait_for};
use crate::harness::peername::Peername;
use crate::harness::programs::sender::Haproxy;
use crate::harness::programs::server::nginx;
use crate::harness::rig::proxy::{ProxyRig, front_of, header_for};

/// Connections without a client are marked (SO_MARK), too. go-mmproxy does not mark them, so its health checks take another
/// route.
#[test]
fn every_connection_to_the_backend_is_marked() {
    let mut rig = ProxyRig::new(&["--mark=7"]);
    rig.lab
        .server
        .add_filter("output", "tcp dport 9000 meta mark != 7 reject");
    rig.assert_serves(fresh_client_v4());
    rig.assert_serves(fresh_client_v6());
    for header in [raw(LOCAL, STREAM_V4, &[]), b"PROXY UNKNOWN\r\n".to_vec()] {
        let _down = rig.connect_and_send(&header);
        assert_eq!(
            rig.backend_v4.accept().peer_addr().ip().to_string(),
            "127.0.0.1"
        );
    }
}

/// Version 2 is sent on unchanged, TLVs included.
#[test]
fn header_is_sent_on_to_the_backend() {
    let fields = [tlv(0x02, b"a.example"), tlv(0xea, b"\x01vpce-1")].concat();
    for client in [fresh_client_v4(), fresh_client_v6()] {
        let rig = ProxyRig::new(&["--send-proxy=v2"]);
        let header = v2(client, front_of(client), &fields);
        let _down = rig.connect_and_send(&[&header, &b"payload"[..]].concat());
        let up = rig.accept_client(client);
        let expected = [header, b"payload".to_vec()].concat();
        assert_eq!(up.recv(expected.len()), expected);
        let rig = ProxyRig::new(&["--send-proxy=v1"]);
        let expected = v1(client, front_of(client));
        let _down = rig.connect_and_send(&[header_for(client), b"payload".to_vec()].concat());
        let up = rig.accept_client(client);
        assert_eq!(
            up.recv(expected.len() + 7),
            [expected, b"payload".to_vec()].concat()
        );
    }
}

/// A header of two families is sent on as a valid header, with the IPv4 address mapped into IPv6, as HAProxy does.
#[test]
fn outbound_header_of_two_families_is_valid() {
    let client = fresh_client_v6();
    let (ip, port) = (client.ip(), client.port());
    let header = format!("PROXY TCP6 {ip} 203.0.113.1 {port} 80\r\n");
    let mapped = v6([0, 0, 0, 0, 0, 0xffff, 0xcb00, 0x7101], 80);
    // Never with a dotted tail, which the grammar of version 1 does not have.
    let line = format!("PROXY TCP6 {ip} ::ffff:cb00:7101 {port} 80\r\n").into_bytes();
    for (version, expected) in [("v1", line), ("v2", v2(client, mapped, &[]))] {
        let rig = ProxyRig::new(&[&format!("--send-proxy={version}")]);
        let _down = rig.connect_and_send(header.as_bytes());
        let up = rig.accept_client(client);
        assert_eq!(up.recv(expected.len()), expected, "{version}");
    }
}

/// A backend that accepts and reads nothing holds a client for the connect timeout only.
#[test]
fn backend_that_does_not_take_the_outbound_header_is_given_up() {
    let lab = Lab::new();
    let options = [
        "--send-proxy=v2",
        "--max-header=65551",
        "--connect-timeout=1s",
    ];
    let proxy = Peername::proxy(&lab, &options);
    // The header is many times as long as what the kernel buffers.
    for buffers in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
        lab.server.sysctl(buffers, "4096 4096 4096");
    }
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let client = fresh_client_v4();
    let fields = tlv(0xe5, &[b'x'; 2000]).repeat(30);
    let header = v2(client, front_of(client), &fields);
    let down = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header);
    let up = backend.accept_from(client);
    down.wait_reset();
    assert_eq!(up.recv_to_end().1, End::Reset);
    proxy.wait_logged_parts(&["connect_timeout", &client.to_string()]);
    proxy.wait_logged("it does not take the outbound header within 1s");
}

/// nginx, which reads headers itself, sees the client twice: as the connection's source and in the header.
#[test]
fn nginx_reads_the_outbound_header() {
    for version in ["v1", "v2"] {
        let lab = Lab::new();
        let scratch = Scratch::new();
        let server = format!("listen {TARGET_V4} proxy_protocol; return 204;");
        let config = nginx::write_config(
            &scratch,
            "user root; worker_processes 1;",
            LOG_FORMAT,
            &server,
        );
        let process =
            Process::start_in_pid_namespace(&lab.server, "nginx", &["-c", &config, "-e", "stderr"]);
        let _nginx = process.wait_listening(&[TARGET_V4]);
        let _proxy = Peername::proxy(&lab, &[&format!("--send-proxy={version}")]);
        let _haproxy = Haproxy::start(&lab, LISTEN_V4, "send-proxy-v2");
        lab.client
            .run("curl", &["-sS", &format!("http://{FRONT_V4}/")]);
        let logged = wait_for("nginx's access log", || {
            let log = scratch.read("access.log");
            log.strip_suffix('\n').map(str::to_owned)
        });
        assert_eq!(logged, "203.0.113.9 40054 203.0.113.9 40054", "{version}");
    }
}

/// Logs the client by the connection and by the header.
const LOG_FORMAT: &str = "$remote_addr $remote_port $proxy_protocol_addr $proxy_protocol_port";
