//! Well-known clients that connect to well-known receivers.

use std::net::SocketAddr;

use crate::harness::addr::{LISTEN_V4, LISTEN_V6, TARGET_V4, fresh_client_v4, fresh_client_v6};
use crate::harness::lab::{
    Lab, Process, Scratch, assert_contains, stderr_text, stdout_text, wait_for,
};
use crate::harness::peername::{BINARY, IS_STATIC, Peername, words};
use crate::harness::programs::server::{Python, Server};
use crate::harness::rig::exec::{Libc, ProgramRig, ServerRig, compiled_server, mapped_ipv6};
use crate::harness::rig::exec_connect::{connect_stdout, run_connect};

const CURL: [&str; 4] = ["curl", "-sS", "--max-time", "10"];
const VERSIONS: [&str; 2] = ["--proxy-version=1", "--proxy-version=2"];

/// As in the README of libproxyproto: netcat on one side, a server without PROXY support on the other.
#[test]
fn server_under_exec_sees_netcats_client() {
    let served = ServerRig::new("--accept=level --family=6 --brief", &[]);
    for (client, to) in [
        (fresh_client_v4(), LISTEN_V4),
        (fresh_client_v6(), LISTEN_V6),
    ] {
        let ip = to.ip().to_string();
        let nc = ["nc.openbsd", "-N", &ip, "8443"];
        for version in VERSIONS {
            let printed = connect_stdout(&served.lab.balancer, client, &[version], &nc, "hello");
            served.assert_report(&printed, mapped_ipv6(client));
        }
    }
}

/// The receiver is `peername proxy`, which makes the client the source of its connection to the server.
#[test]
fn server_behind_the_proxy_sees_netcats_client() {
    let lab = Lab::new();
    let server = Python::start(&lab.server);
    let proxy = Peername::proxy(&lab, &[]);
    let client = fresh_client_v4();
    let nc = ["nc.openbsd", "10.81.0.1", "8443"];
    let printed = connect_stdout(&lab.balancer, client, &[], &nc, "");
    assert!(
        printed.contains(&client.ip().to_string()),
        "{printed}\n{}",
        proxy.log()
    );
    drop(server);
}

/// asyncio and libuv don't wait in connect(2). These clients wait for the server to speak first.
#[test]
fn event_loops_send_their_header() {
    let answer = "SYSTEM:echo peer $SOCAT_PEERADDR $SOCAT_PEERPORT";
    let listen = "TCP4-LISTEN:8443,bind=10.81.0.1,reuseaddr,fork";
    let program = ProgramRig::start(&["socat", listen, answer]);
    for client in [["/usr/bin/python3", "-c", PYTHON], ["node", "-e", NODE]] {
        let source = fresh_client_v4();
        let printed = connect_stdout(&program.lab.balancer, source, &[], &client, "");
        let expected = format!("peer {} {}\n", source.ip(), source.port());
        assert_eq!(printed, expected, "{client:?}");
    }
}

/// nginx as the receiver: its log has the client, over both families.
#[test]
fn nginx_logs_curls_client() {
    let (lab, scratch) = (Lab::without_routes(), Scratch::new());
    scratch.write("index.html", "hello\n");
    let config = scratch.write("nginx.conf", &NGINX.replace("DIR", &scratch.path_text(".")));
    let nginx =
        Process::start_in_pid_namespace(&lab.server, "nginx", &["-c", &config, "-e", "stderr"]);
    let _nginx = nginx.wait_listening(&[LISTEN_V4, LISTEN_V6]);
    let mut expected = Vec::new();
    for (client, to) in [
        (fresh_client_v4(), LISTEN_V4),
        (fresh_client_v6(), LISTEN_V6),
    ] {
        for version in VERSIONS {
            let url = format!("http://{to}/");
            let curl = [&CURL[..], &[&url, &url]].concat();
            let printed = connect_stdout(&lab.balancer, client, &[version], &curl, "");
            assert_eq!(printed, "hello\nhello\n");
            // Two requests over one connection, which has one header.
            expected.extend([(client, 1), (client, 2)]);
        }
    }
    let logged = wait_for("nginx's access log", || {
        let log = scratch.read("access.log");
        (log.lines().count() == expected.len()).then(|| log.clone())
    });
    for (line, (client, request)) in logged.lines().zip(expected) {
        let words = format!("{} {} {request}", client.ip(), client.port());
        assert_eq!(line, words);
    }
}

/// HAProxy as the receiver returns the client's address to the client. curl connects with Fast Open, which it requests by
/// TCP_FASTOPEN_CONNECT, and without.
#[test]
fn haproxy_sees_curls_client() {
    let (lab, scratch) = (Lab::without_routes(), Scratch::new());
    let config = scratch.write("haproxy.cfg", HAPROXY);
    let haproxy = Process::start(&lab.server, "haproxy", &["-db", "-f", &config]);
    let _haproxy = haproxy.wait_listening(&[LISTEN_V4, LISTEN_V6]);
    for (client, to) in [
        (fresh_client_v4(), LISTEN_V4),
        (fresh_client_v6(), LISTEN_V6),
    ] {
        for version in VERSIONS {
            for options in [&[][..], &["--tcp-fastopen"]] {
                let url = format!("http://{to}/");
                let curl = [&CURL[..], options, &[&url]].concat();
                let printed = connect_stdout(&lab.balancer, client, &[version], &curl, "");
                assert_eq!(printed, format!("{} {}\n", client.ip(), client.port()));
            }
        }
    }
}

/// Processes that a shell starts are covered too, and the launcher warns that it can't guarantee that for all
/// of them.
#[test]
fn children_send_their_header() {
    let served = ServerRig::new("--accept=level --brief", &[]);
    let client = fresh_client_v4();
    let line =
        "echo hello | nc.openbsd -N 10.81.0.1 8443; printf hello | nc.openbsd -N 10.81.0.1 8443";
    let output = run_connect(&served.lab.balancer, client, &[], &["sh", "-c", line], "");
    for printed in stdout_text(&output).lines() {
        served.assert_report(printed, client);
    }
    assert_eq!(stdout_text(&output).lines().count(), 2, "{output:?}");
    assert!(
        stderr_text(&output).contains("may start programs of any kind"),
        "{output:?}"
    );
}

/// socat is client and server, with both libraries. As a client it sends the source that `--source` names.
#[test]
fn one_program_may_be_client_and_server() {
    if IS_STATIC {
        // The program is peername itself here, and `exec` refuses to preload into a static one.
        return;
    }
    let listen = "TCP4-LISTEN:8443,bind=10.81.0.1,reuseaddr,fork";
    let lab = Lab::without_routes();
    let server = compiled_server(Libc::Glibc);
    let line = format!(
        "exec --mode=preload --trust=loopback -- {server} --accept=level --port=9000 --brief"
    );
    let server_args = words(&line);
    let _server = Peername::start(&lab.server, &server_args, &[TARGET_V4]);
    let source: SocketAddr = fresh_client_v4();
    let source_option = format!("--source={source}");
    let program = ProgramRig::start_in(
        lab,
        &[],
        &words(&format!(
            "{BINARY} exec --connect {source_option} -- socat {listen} TCP4:127.0.0.1:9000"
        )),
    );
    let client = fresh_client_v4();
    let nc = ["nc.openbsd", "-N", "10.81.0.1", "8443"];
    let printed = connect_stdout(&program.lab.balancer, client, &[], &nc, "hello");
    assert_contains(&printed, &[&format!("accept {source} ")]);
}

const PYTHON: &str = r"
import asyncio
async def main():
    reader, writer = await asyncio.open_connection('10.81.0.1', 8443)
    print((await reader.read()).decode(), end='')
asyncio.run(main())
";

const NODE: &str = r#"require("net").connect(8443, "10.81.0.1").pipe(process.stdout)"#;

const NGINX: &str = include_str!("programs/nginx.conf");

const HAPROXY: &str = include_str!("programs/haproxy.cfg");
