//! The audit line of requests that failed or had no body to await, and of tunnels that were unused or cut.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::{Value, json};

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::lab::{
    Host, Scratch, assert_count, assert_fields, assert_succeeds, json_lines, wait_for, wait_until,
};
use crate::harness::peername::Peername;
use crate::harness::rig::intercept::{InterceptLab, InterceptRig, PROXY_ADDR, recv_head};

/// The audit line has the upstream address at whichever stage the request failed, and none where no address was tried.
#[test]
fn failed_request_names_the_upstream_that_was_tried() {
    let (_names, rig) = InterceptLab::new().start_with_unknown_names(&[]);
    for (url, path, code, tried) in [
        (
            "https://expired.test/certificate",
            "/certificate",
            "upstream_tls_expired",
            Some("10.81.0.1:443"),
        ),
        (
            "http://a.test:9/refused",
            "/refused",
            "connect_refused",
            Some("10.81.0.1:9"),
        ),
        (
            "https://a.test:80/handshake",
            "/handshake",
            "upstream_tls_handshake",
            Some("10.81.0.1:80"),
        ),
        (
            "https://private.test/forbidden",
            "/forbidden",
            "destination_not_public",
            None,
        ),
        ("http://nowhere.invalid/name", "/name", "dns_nxdomain", None),
    ] {
        assert_eq!(rig.curl_problem(&[url])["code"], code, "{url}");
        let line = &rig.wait_audit_lines(path, 1)[0];
        assert_eq!(line["upstream"].as_str(), tried, "{line}");
    }
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let request = b"GET http://a.test:9001/closed HTTP/1.1\r\nHost: a.test:9001\r\n\r\n";
    let client = rig.connect_and_send(request);
    let up = origin.accept();
    recv_head(&up);
    drop(up);
    assert!(recv_head(&client).contains("upstream_closed"));
    let line = &rig.wait_audit_lines("/closed", 1)[0];
    assert_eq!(line["upstream"], "10.81.0.1:9001", "{line}");
}

#[test]
fn failed_parent_proxy_is_the_upstream_that_was_tried() {
    let rig = InterceptLab::new().start(&["--upstream-proxy=http://10.81.0.1:3129"]);
    for url in ["https://a.test/tried", "http://a.test/tried"] {
        let problem = rig.curl_problem(&[url]);
        assert_eq!(problem["code"], "upstream_proxy_failed", "{problem}");
    }
    for line in rig.wait_audit_lines("/tried", 2) {
        assert_eq!(line["upstream"], "10.81.0.1:3129", "{line}");
    }
}

/// Method, status or protocol exclude a body, so the response ends with its head.
#[test]
fn response_without_a_body_is_complete() {
    let rig = InterceptRig::new(&[]);
    let grpc = ["-H", "Content-Type: application/grpc"];
    for (lines_before, version) in ["--http1.1", "--http2"].into_iter().enumerate() {
        for (status, host, path, args) in [
            (502, "self-signed.test", "/head", &["--head"][..]),
            (200, "self-signed.test", "/grpc", &grpc),
            (200, "a.test", "/large", &["--head"]),
            (204, "a.test", "/none", &[]),
            (304, "a.test", "/index.html", &["-H", "If-None-Match: *"]),
        ] {
            let url = format!("https://{host}{path}");
            assert_eq!(rig.curl_status(&[args, &[version, &url]].concat()), status);
            let line = &rig.wait_audit_lines(path, lines_before + 1)[lines_before];
            assert_eq!(line["end"], "complete", "{version}: {line}");
        }
    }
}

/// OpenSSL's client finishes the handshake and closes; another begins a request and closes.
#[test]
fn unused_tunnel_has_an_audit_line() {
    let rig = InterceptRig::new(&["--admin=127.0.0.1:9300"]);
    let (ca, proxy) = (rig.scratch.path_text("ca.pem"), PROXY_ADDR.to_string());
    let mut client = Command::new("timeout");
    client.args([
        "--signal=KILL",
        "20",
        "openssl",
        "s_client",
        "-proxy",
        &proxy,
    ]);
    client.args([
        "-connect",
        "a.test:443",
        "-CAfile",
        &ca,
        "-verify_return_error",
    ]);
    assert_succeeds(&rig.lab.client.output(&mut client, ""));
    let line = &wait_tunnel_lines(&rig, 1)[0];
    let expected = json!({
        "method": "CONNECT", "connect": "a.test:443", "sni": "a.test", "tls": "1.3",
        "scheme": "https", "decision": "unchecked", "end": "unused",
    });
    assert_fields(line, expected);
    let conn = rig.connect_and_send(b"CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n");
    assert!(recv_head(&conn).starts_with("HTTP/1.1 200 "));
    conn.send(b"GET / HTTP/1.1\r\n");
    drop(conn);
    let line = &wait_tunnel_lines(&rig, 2)[1];
    assert_fields(
        line,
        json!({"connect": "a.test:80", "scheme": null, "end": "unused"}),
    );
    // A tunnel that was used has no line of its own, because its requests have theirs.
    rig.curl(&["https://a.test/echo"]);
    rig.wait_audit_lines("/echo", 1);
    // The line of a tunnel is written at its end.
    wait_until("the end of the tunnel", || {
        rig.read_metrics().contains("connections_active 0")
    });
    assert_eq!(wait_tunnel_lines(&rig, 2).len(), 2);
    // The two unused tunnels and GET /echo: a tunnel that was used is not counted.
    let counted = r#"peername_intercept_requests_total{decision="unchecked"} 3"#;
    let metrics = rig.read_metrics();
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");
}

#[test]
fn tunnel_that_its_origin_resets_is_logged_as_cut_by_origin() {
    let rig = InterceptRig::new(&["--passthrough=a.test"]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    thread::scope(|scope| {
        scope.spawn(|| rig.try_curl(&["https://a.test:9001/"]));
        let up = origin.accept();
        assert_eq!(up.recv(1), [HANDSHAKE]);
        up.reset();
    });
    let line = &wait_tunnel_lines(&rig, 1)[0];
    assert_fields(line, json!({"how": "passthrough", "end": "cut_by_origin"}));
}

/// The CONNECT that precedes a request has no line of its own at its end.
#[test]
fn admissions_of_tunnel_and_request_have_the_connection_of_the_audit_line() {
    let lab = InterceptLab::new();
    let log = lab.scratch.path_text("audit.log");
    let entry = ["-nbBC", "4", "ann", "secret"];
    let entry = lab.lab.client.run("htpasswd", &entry);
    let users = lab.scratch.write("users", &entry);
    let rig = lab.start(&["--log", &log, "--proxy-auth", &users]);
    rig.curl(&["--proxy-user", "ann:secret", "https://a.test/echo"]);
    let request = &wait_request_lines(&log, 1)[0];
    let text = fs::read_to_string(&log).expect("the log");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let messages: Vec<_> = lines.iter().map(|line| &line["message"]).collect();
    assert_eq!(
        messages,
        ["tunnel admitted", "request admitted", "request"],
        "{text}"
    );
    for line in &lines {
        let (connection, client) = (&request["connection"], &request["client"]);
        let expected = json!({"connection": connection, "client": client, "user": "ann"});
        assert_fields(line, expected);
    }
}

/// A rotation moves the file away and sends SIGHUP.
#[test]
fn reload_opens_the_file_of_the_log_again() {
    let lab = InterceptLab::new();
    let log = lab.scratch.path_text("audit.log");
    let rig = lab.start(&["--log", &log]);
    rig.curl(&["http://a.test/echo?one"]);
    wait_request_lines(&log, 1);
    let rotated = format!("{log}.1");
    fs::rename(&log, &rotated).expect("rename(2)");
    rig.proxy.reload("\"reloaded\"");
    rig.proxy.wait_logged("the file of --log was opened again");
    rig.curl(&["http://a.test/echo?two"]);
    let lines = wait_request_lines(&log, 1);
    assert_eq!(lines[0]["decision"], "unchecked", "{lines:?}");
    wait_request_lines(&rotated, 1);
    let admitted = fs::read_to_string(&log).expect("the log");
    assert_count(&admitted, "request admitted", 1);
    assert!(!rig.proxy.log().contains("/echo"), "{}", rig.proxy.log());
    // A removed file is made again by the next line, without a reload.
    fs::remove_file(&log).expect("unlink(2)");
    rig.curl(&["http://a.test/echo?three"]);
    wait_request_lines(&log, 1);
}

/// A directory is no file. In a directory that has replaced the one of the start, the confined process may not write.
#[test]
fn reload_that_can_not_open_the_file_of_the_log_is_refused() {
    let lab = InterceptLab::new();
    let directory = lab.scratch.path_text("log");
    fs::create_dir(&directory).expect("mkdir(2)");
    let log = format!("{directory}/audit.log");
    let rig = lab.start(&["--log", &log]);
    wait_for("the log", || fs::exists(&log).ok().filter(|exists| *exists));
    fs::rename(&log, format!("{log}.1")).expect("rename(2)");
    fs::create_dir(&log).expect("mkdir(2)");
    let refused = rig.proxy.reload("reload refused");
    assert!(refused.contains("Is a directory"), "{refused}");
    fs::rename(&directory, format!("{directory}.1")).expect("rename(2)");
    fs::create_dir(&directory).expect("mkdir(2)");
    let refused = rig.proxy.reload("reload refused");
    assert!(refused.contains("`peername upgrade` it"), "{refused}");
}

#[test]
fn request_is_denied_where_the_log_can_not_be_written() {
    let rig = InterceptRig::new(&["--allow=any", "--log=/dev/full"]);
    let problem = rig.curl_problem(&["http://a.test/echo"]);
    assert_fields(
        &problem,
        json!({"status": 503, "code": "audit_failed", "detail": "the audit log is not writable"}),
    );
    rig.proxy.wait_line("the warning", |line| {
        let line: Value = serde_json::from_str(line).ok()?;
        let message = line["message"].as_str()?;
        (line["level"] == "WARN" && message.starts_with("--log can't be written")).then_some(())
    });
    // Lines at the end of requests wait in a buffer for space. Those beyond it are lost.
    rig.try_curl(&["http://a.test/echo?[1-300]"]);
    rig.proxy.wait_logged("lines of the log were lost");
}

/// Few lines fit into the buffer, where they wait for space. At the exit they are lost.
#[test]
fn lines_that_wait_for_space_are_reported_at_once_and_at_the_exit() {
    let mut rig = InterceptRig::new(&["--allow=any", "--log=/dev/full"]);
    rig.curl_problem(&["http://a.test/echo"]);
    rig.proxy
        .wait_logged("lines of the log can't be written yet");
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_success(Duration::from_secs(5));
    rig.proxy
        .wait_logged("1 lines of the log were lost since the start");
}

/// A limit of file sizes (`ulimit -f`, LimitFSIZE= of a unit) is as a full disk, and ends nothing.
#[test]
fn request_is_denied_where_the_log_has_reached_the_limit_of_file_sizes() {
    let lab = InterceptLab::new();
    let log = lab.scratch.write("audit.log", "a full line\n");
    let rig = lab.start(&["--allow=any", "--log", &log]);
    let proxy = Pid::from_raw(rig.proxy.pid().cast_signed());
    let own_size = Rlimit {
        current: Some(12),
        maximum: Some(12),
    };
    prlimit(proxy, Resource::Fsize, own_size).expect("prlimit(2)");
    let problem = rig.curl_problem(&["http://a.test/echo"]);
    assert_fields(&problem, json!({"status": 503, "code": "audit_failed"}));
    rig.proxy.wait_logged("File too large");
}

/// A pipe whose reader is absent, or slow, would hold up the start and every worker.
#[test]
fn pipe_without_a_reader_is_refused_as_the_log() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let pipe = scratch.path_text("pipe");
    host.run("mkfifo", &[&pipe]);
    let ca = format!("--ca={}", scratch.path_text("ca"));
    Peername::run(&host, &["ca", "init", &ca]);
    let args = ["intercept", "--allow=any", &ca, "--log", &pipe];
    let printed = Peername::run_failing(&host, &args, 2);
    assert!(printed.contains("No such device or address"), "{printed}");
}

/// Waits until the file has so many lines of requests, and returns them.
fn wait_request_lines(path: &str, count: usize) -> Vec<Value> {
    wait_for("audit lines in the file", || {
        let mut lines = json_lines(&fs::read_to_string(path).ok()?);
        lines.retain(|line| line["message"] == "request");
        (lines.len() == count).then_some(lines)
    })
}

/// Waits for the audit lines of tunnels, which have no path.
fn wait_tunnel_lines(rig: &InterceptRig, count: usize) -> Vec<Value> {
    rig.wait_audit_lines("", count)
}

/// The first byte of a ClientHello (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;
