//! The audit line of requests that failed or had no body to await, and of tunnels that were unused or cut.

use std::fs;
use std::process::Command;
use std::thread;

use serde_json::{Value, json};

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::lab::{assert_fields, assert_succeeds, wait_until};
use crate::harness::rig::intercept::{
    InterceptLab, InterceptRig, PROXY_ADDR, recv_head, wait_request_lines,
};

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

/// Waits for the audit lines of tunnels, which have no path.
fn wait_tunnel_lines(rig: &InterceptRig, count: usize) -> Vec<Value> {
    rig.wait_audit_lines("", count)
}

/// The first byte of a ClientHello (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;
