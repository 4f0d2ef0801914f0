//! One log line per connection, at its end: client, target, bytes and outcome. Bytes that a peer sends are escaped in it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::mpsc;
use std::thread;

use serde_json::Value;

use crate::harness::addr::{FRONT_V4, LISTEN_V4, TARGET_V4, fresh_client_v4, v4};
use crate::harness::admin::{get, wait_metric};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes::{self, tlv, v2};
use crate::harness::lab::{Lab, Scratch, WAIT_LIMIT, assert_contains};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::ProxyRig;

#[test]
fn each_connection_has_one_log_line() {
    let rig = ProxyRig::new(&[]);
    let client = fresh_client_v4();
    let (down, up) = rig.connect_client(client);
    down.send(b"question");
    down.shutdown_write();
    up.recv_to_end();
    up.send(b"the answer");
    drop(up);
    down.recv_to_end();
    let line = rig.proxy.wait_json("about the connection", |line| {
        line["message"] == "connection ended"
    });
    assert_eq!(line["client"], client.to_string());
    assert_eq!(line["peer"], down.local_addr().to_string());
    assert_eq!(line["listener"], "10.81.0.1:8443");
    assert_eq!(line["upstream"], "127.0.0.1:9000");
    assert_eq!(line["bytes_to_upstream"], 8);
    assert_eq!(line["bytes_to_downstream"], 10);
    assert_eq!(line["outcome"], "finished");
    assert_eq!(line["fault"], "none");
}

/// An operator can log each connection for as long as it takes to find a fault.
#[test]
fn log_level_is_changed_over_a_unix_socket() {
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let rig = ProxyRig::new(&[&format!("--admin=unix:{path}")]);
    let host = &rig.lab.server;
    let put = |level: &str| {
        get(
            host,
            &["--unix-socket", &path, "-X", "PUT", "-d", level],
            "/log-level",
        )
    };
    assert_eq!(put("warn"), "warn\n200");
    let wait_audited = |change: &str| rig.proxy.wait_logged_parts(&[change, "\"uid\":0"]);
    wait_audited("the level of the log was changed from debug to warn");
    drop(rig.connect_client(fresh_client_v4()));
    wait_ended(&rig, &path, 1);
    assert!(
        !rig.proxy.log().contains("connection ended"),
        "{}",
        rig.proxy.log()
    );
    assert!(put("loud").ends_with("400"));
    assert_eq!(
        get(host, &["--unix-socket", &path], "/log-level"),
        "warn\n200"
    );
    assert_eq!(put("debug"), "debug\n200");
    wait_audited("the level of the log was changed from warn to debug");
    drop(rig.connect_client(fresh_client_v4()));
    rig.proxy.wait_outcome("finished");
}

/// `-v 2` of go-mmproxy is `trace`: a line for each connection at its end. At the start the level is `info`.
#[test]
fn level_set_by_the_admin_endpoint_applies_to_go_mmproxys_format() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let socket = scratch.path_text("admin.sock");
    let line = format!(
        "proxy --target={TARGET_V4} --listen={LISTEN_V4} --trust=any --log-format=go-mmproxy \
         --admin=unix:{socket}"
    );
    let proxy = Peername::start(&lab.server, &words(&line), &[LISTEN_V4]);
    let args = ["--unix-socket", &socket, "-X", "PUT", "-d", "trace"];
    assert_eq!(get(&lab.server, &args, "/log-level"), "trace\n200");
    let client = fresh_client_v4();
    let header = header_bytes::v1(client, FRONT_V4);
    let down = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header);
    let up = backend.accept();
    down.shutdown_write();
    up.recv_to_end();
    drop(up);
    proxy.wait_logged_parts(&["connection closing", &client.to_string()]);
}

/// Without `-v`, peers that are refused can't fill a disk.
#[test]
fn connections_are_not_logged_without_verbose() {
    let lab = Lab::new();
    let args =
        words("proxy --target=127.0.0.1:443 --listen=10.81.0.1:8443 --trust=any --log-format=json");
    let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    proxy.wait_logged("listening");
    let before = proxy.log();
    for _ in 0..50 {
        let conn = Conn::connect_and_send(&lab.balancer, LISTEN_V4, b"nonsense");
        conn.wait_closed();
    }
    // The refusals are in a throttled log: one line in an interval, however many peers connect.
    let log = proxy.log();
    let added = log.strip_prefix(&before).expect("nothing is taken back");
    assert!(added.trim().lines().count() <= 1, "{added}");
}

/// The warning about one reason does not suppress that about another.
#[test]
fn each_reason_of_a_refusal_has_a_warning_of_its_own() {
    let lab = Lab::new();
    let args = "proxy --target=127.0.0.1:443 --listen=10.81.0.1:8443 --trust=any --log-format=json";
    let proxy = Peername::start_listening(&lab.server, &words(args));
    let version_3 = [V2_SIGNATURE, &[0x31, 0x11, 0, 0]].concat();
    let local = header_bytes::v2(v4([127, 0, 0, 1], 4321), FRONT_V4, &[]);
    for (sent, reason) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "no_header"),
        (&version_3, "v2_version"),
        (&local, "source_loopback"),
    ] {
        for _ in 0..5 {
            Conn::connect_and_send(&lab.balancer, LISTEN_V4, sent).wait_closed();
        }
        let warning = format!("connections refused: {reason}");
        proxy.wait_logged_parts(&["WARN", &warning]);
        assert!(proxy.count_logged(&warning) < 3, "{}", proxy.log());
    }
}

/// A configuration error that refuses all clients is logged without `-v`: once, with the reason and the peer.
#[test]
fn refusal_of_all_clients_is_logged_with_its_cause() {
    let local = header_bytes::v2(v4([127, 0, 0, 1], 4321), FRONT_V4, &[]);
    let unlisted = header_bytes::v2(fresh_client_v4(), v4([192, 0, 2, 9], 22), &[]);
    let too_long = header_bytes::v2(fresh_client_v4(), FRONT_V4, &tlv(0xe0, &[0; 600]));
    let version_3 = [V2_SIGNATURE, &[0x31, 0x11, 0, 0]].concat();
    let listed_only = "--trust=any --dynamic-destination --allow-destination=10.9.0.0/16";
    for (options, sent, reason) in [
        ("--trust=192.0.2.0/24", &b""[..], "untrusted_peer"),
        ("--trust=any", b"GET / HTTP/1.1\r\n\r\n", "no_header"),
        ("--trust=any", b"", "header_timeout"),
        ("--trust=any", &V2_SIGNATURE[..7], "header_timeout"),
        ("--trust=any", &version_3, "v2_version"),
        ("--trust=any --max-header=536", &too_long, "header_too_long"),
        ("--trust=any", &local, "source_loopback"),
        (listed_only, &unlisted, "destination_not_listed"),
    ] {
        for protocol in ["tcp", "udp"] {
            if protocol == "udp" && !["untrusted_peer", "no_header"].contains(&reason) {
                continue;
            }
            let lab = Lab::new();
            // Short only where the timeout is to expire, because a busy machine must not exceed it in the other cases.
            let limit = if reason == "header_timeout" {
                "--header-timeout=100ms"
            } else {
                ""
            };
            let args = format!(
                "proxy --target=127.0.0.1:443 --listen=10.81.0.1:8443 --log-format=json --protocol={protocol} {options} \
                 {limit}"
            );
            let proxy = Peername::start_listening(&lab.server, &words(&args));
            for _ in 0..5 {
                match protocol {
                    "udp" => {
                        let from = v4([10, 81, 0, 2], 0);
                        DatagramSocket::bind(&lab.balancer, from).send(LISTEN_V4, &[sent]);
                    }
                    _ if reason == "untrusted_peer" => {
                        Conn::assert_refused(&lab.balancer, LISTEN_V4);
                    }
                    _ => drop(Conn::connect_and_send(&lab.balancer, LISTEN_V4, sent).wait_closed()),
                }
            }
            let line = proxy.wait_logged("refused: ");
            assert_contains(&line, &["WARN", reason, "10.81.0.2"]);
            let log = proxy.log();
            assert_eq!(log.matches("refused: ").count(), 1, "{log}");
            assert!(!log.contains("GET"), "{log}");
        }
    }
}

/// The proxy does not wait for the reader of its log. It drops lines, and logs their number once the log is read again.
#[test]
fn dropped_log_lines_are_counted() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let fifo = scratch.path_text("log");
    lab.server.run("mkfifo", &[&fifo]);
    let log = File::options().read(true).write(true).open(&fifo);
    let log = BufReader::new(log.expect("a pipe"));
    let script = format!("exec \"$@\" 2>{fifo}");
    let through = ["sh", "-c", &script, "sh"];
    let args = words(
        "proxy --target=127.0.0.1:443 --listen=10.81.0.1:8443 --trust=any --log-format=json -v",
    );
    let _proxy = Peername::start_through(&lab.server, &through, &args, &[LISTEN_V4]);
    // More lines than the queue and the pipe hold.
    for _ in 0..36 {
        for _ in 0..500 {
            Conn::connect(&lab.balancer, LISTEN_V4).reset();
        }
        // Wait for the workers: connections that exceed the accept backlog are dropped by the kernel and not logged.
        Conn::connect_and_send(&lab.balancer, LISTEN_V4, b"nonsense\r\n").wait_closed();
    }
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = log.lines().map_while(Result::ok);
        sender.send(lines.find(|line| line.contains("lines of the log were lost")))
    });
    let line = receiver
        .recv_timeout(3 * WAIT_LIMIT)
        .expect("a line in time");
    let line: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
    assert!(
        line["lines"].as_u64().is_some_and(|lines| lines > 100),
        "{line}"
    );
}

/// A name in a header comes from the client. It must not end a line, clear a screen or pose as a field.
#[test]
fn bytes_from_peers_are_escaped() {
    let name = b"a.example\n{\"outcome\":\"finished\"}\x1b[2J\xff";
    for format in ["json", "text"] {
        let lab = Lab::new();
        let backend = Backend::listen(&lab.server, TARGET_V4);
        let args = words(
            "proxy -v --listen=10.81.0.1:8443 --target-v4=127.0.0.1:9000 --trust=any \
             --log-tlv=authority --log-format",
        );
        let args = [&args[..], &[format]].concat();
        let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
        let down = Conn::connect_and_send(
            &lab.balancer,
            LISTEN_V4,
            &v2(fresh_client_v4(), FRONT_V4, &tlv(2, name)),
        );
        drop(backend.accept());
        down.recv_to_end();
        drop(down);
        let ended = proxy.wait_logged("connection ended");
        assert_contains(
            &ended,
            &["=a.example%0a{%22outcome%22:%22finished%22}%1b[2J%ff"],
        );
        for line in proxy.log().lines() {
            assert!(!line.contains(char::is_control), "{line:?}");
            assert_eq!(line.starts_with('{'), format == "json", "{line}");
        }
    }
}

/// Waits until `count` connections have ended as `finished`.
#[track_caller]
fn wait_ended(rig: &ProxyRig, path: &str, count: usize) {
    let line = format!(
        "peername_connections_total{{listener=\"{LISTEN_V4}\",protocol=\"tcp\",outcome=\"finished\"}} {count}"
    );
    wait_metric(&rig.lab.server, &["--unix-socket", path], &line);
}

const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
