//! Refusals are logged on standard error, with the reason and the remedy, throttled.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use crate::harness::addr::{LISTEN_V4, fresh_client_v4, fresh_client_v6};
use crate::harness::conn::Conn;
use crate::harness::lab::{Scratch, assert_contains, wait_until};
use crate::harness::rig::exec::{Libc, MODES, ServerRig, compiled_server, pseudo_ipv4, v2};

const HEADER_TIMEOUT: &str = "--header-timeout=1s";

/// Each row: options, the bytes that are refused under them, and the remedy that is logged.
#[test]
fn refusal_is_logged_with_its_remedy() {
    let local: SocketAddr = "127.0.0.1:4711".parse().expect("an address");
    let header = v2(fresh_client_v4());
    let refusals_with_remedies: [(&[&str], &[u8], &str); 4] = [
        (&["--trust=192.0.2.99"], &header, "add --trust 10."),
        (&[], b"GET / HTTP/1.0\r\n\r\n", "let the balancer send one"),
        (&[], &v2(local), "--source-policy"),
        (&[], &header[..20], "--header-timeout"),
    ];
    for mode in MODES {
        for (options, bytes, remedy) in refusals_with_remedies {
            let options = [options, &[HEADER_TIMEOUT]].concat();
            let served = ServerRig::with_mode(mode, "--accept=level", &options);
            Conn::assert_reset(&served.lab.balancer, LISTEN_V4, bytes);
            let line = served.process.wait_logged(remedy);
            assert!(
                line.starts_with("peername: refused a connection from 10."),
                "{line}"
            );
            assert_contains(&line, &[" to port 8443: "]);
            // The same refusal again is only counted: its line is due after the interval.
            Conn::assert_reset(&served.lab.balancer, LISTEN_V4, bytes);
            assert_eq!(refusals(&served), 1, "{}", served.process.log());
        }
    }
}

#[test]
fn program_that_listens_on_none_of_the_ports_is_reported() {
    for mode in MODES {
        let served = ServerRig::with_mode(mode, "--accept=level", &["--ports=9440-9443,80"]);
        let text = "the program listens on port 8443, and on no port of --ports 80,9440-9443";
        served.process.wait_logged(text);
    }
}

#[test]
fn refusal_of_a_local_balancer_names_the_trust_option() {
    for mode in MODES {
        let served = ServerRig::with_mode(mode, "--accept=level", &["--trust=192.0.2.99"]);
        let loopback = SocketAddr::new("127.0.0.1".parse().expect("an address"), LISTEN_V4.port());
        Conn::assert_reset(&served.lab.server, loopback, &v2(fresh_client_v4()));
        served.process.wait_logged("add --trust loopback");
    }
}

/// The server logs an address that no host has: one line tells whose it is, and with -v one for each connection. The second
/// client has another /64, and so another stand-in, which has a line as well.
#[test]
fn stand_in_of_an_ipv6_client_is_logged() {
    let runs: [(&[&str], usize); 2] = [(&[], 1), (&["-v"], 3)];
    for mode in MODES {
        for (options, lines) in runs {
            let served = ServerRig::with_mode(mode, "--accept=level", options);
            let client = fresh_client_v6();
            let std::net::IpAddr::V6(ip) = client.ip() else {
                unreachable!("an IPv6 address")
            };
            let shown = std::net::SocketAddr::from((pseudo_ipv4(ip), client.port()));
            let text = format!("shows the client {client} as {shown}: {} ", shown.ip());
            for _ in 0..3 {
                served.report_for(&v2(client));
            }
            let other: std::net::SocketAddr = "[2001:db8:99::7]:4711".parse().expect("an address");
            served.report_for(&v2(other));
            served
                .process
                .wait_logged(&format!("shows the client {other} as "));
            let count = || served.process.log().matches(&text).count();
            wait_until("the lines", || count() >= lines);
            assert_eq!(count(), lines, "{}", served.process.log());
        }
    }
}

#[test]
fn each_refusal_is_logged_with_verbose() {
    for mode in MODES {
        let served = ServerRig::with_mode(mode, "--accept=level", &["-v"]);
        for _ in 0..20 {
            Conn::assert_reset(&served.lab.balancer, LISTEN_V4, b"EHLO example\r\n");
        }
        wait_until("a line for each", || refusals(&served) == 20);
        served.assert_serves();
    }
}

/// Neither the program nor its helpers block on a standard error that is not read.
#[test]
fn full_standard_error_delays_no_client() {
    let scratch = Scratch::new();
    let filler = scratch.path_text("filler");
    let server = compiled_server(Libc::Glibc);
    // Fills the pipe that is standard error of the program and of the supervisor.
    let script = format!("#!/bin/sh\ntimeout 1 cat /dev/zero >&2\nexec {server} \"$@\"\n");
    fs::write(&filler, script).expect("a script");
    fs::set_permissions(&filler, Permissions::from_mode(0o755)).expect("a script to be run");
    let unread = [
        "bash",
        "-c",
        "exec 2> >(exec sleep 600); exec \"$@\"",
        "bash",
    ];
    for mode in MODES {
        let served = ServerRig::start(mode, &unread, &filler, "--accept=level", &["-v"]);
        for _ in 0..50 {
            Conn::assert_reset(&served.lab.balancer, LISTEN_V4, b"EHLO example\r\n");
        }
        served.assert_serves();
    }
}

fn refusals(served: &ServerRig) -> usize {
    let log = served.process.log();
    log.lines()
        .filter(|line| line.contains("refused a"))
        .count()
}
