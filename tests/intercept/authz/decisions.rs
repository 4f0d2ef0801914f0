//! No request reaches an origin without the check's decision, and a denial has a form that its client
//! understands.

use serde_json::{Value, json};

use crate::harness::addr::v4;
use crate::harness::lab::{
    Lab, Process, Scratch, assert_contains, assert_fields, stderr_text, wait_until,
};
use crate::harness::rig::intercept::{
    CLIENT_IP, InterceptLab, InterceptRig, LONG_CHECK_TIMEOUT, recv_head,
};

const CHECK: std::net::SocketAddr = v4([127, 0, 0, 1], 9191);
pub(super) const CHECK_OPTION: &str = "--check=http://127.0.0.1:9191/";

#[test]
fn denied_request_never_reaches_the_origin() {
    let (rig, check) = start_with_check(&[]);
    for version in ["--http1.1", "--http2"] {
        assert!(
            rig.curl(&[version, "https://a.test/echo"])
                .starts_with("GET a.test ")
        );
        let denied = rig.curl_problem(&[version, "https://a.test/secret/1?token=2"]);
        assert_fields(&denied, json!({"code": "denied", "status": 403}));
        let large = rig.scratch.path_text("large");
        assert_eq!(
            rig.curl_status(&[version, "-T", &large, "https://a.test/secret/2"]),
            403
        );
    }
    assert_eq!(rig.curl_status(&["http://a.test/secret/3"]), 403);
    assert_eq!(rig.wait_origin_log(2).len(), 2);
    assert!(rig.origin_log().iter().all(|line| line.contains("/echo")));
    let request = format!("request GET https a.test /secret/1?token=2 for {CLIENT_IP}");
    check.wait_logged(&request);
    check.wait_logged("connect CONNECT - a.test:443 -");
    let line = &rig.wait_audit_lines("/secret/1", 1)[0];
    assert_fields(line, json!({"decision": "denied", "how": "asked"}));
}

/// The first request of a connection was allowed; that decides nothing about the next.
#[test]
fn each_request_of_a_connection_is_checked() {
    let (rig, _check) = start_with_check(&[]);
    let urls = [
        "https://a.test/echo",
        "https://a.test/secret/1",
        "https://a.test/echo",
    ];
    for version in ["--http1.1", "--http2"] {
        let write = [
            "-s",
            version,
            "-o",
            "/dev/null",
            "-o",
            "/dev/null",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %{num_connects};",
        ];
        let answer = rig.curl(&[&write[..], &urls].concat());
        assert_eq!(answer, "200 1;403 0;200 0;", "{version}");
    }
}

#[test]
fn denied_connect_has_a_response_for_its_client() {
    let (rig, _check) = start_with_check(&[]);
    let output = rig.try_curl(&["-v", "https://b.test/echo"]);
    assert_contains(
        &stderr_text(&output),
        &["CONNECT tunnel failed, response 403"],
    );
    // A browser shows no body of a refused CONNECT, so it gets the page inside the tunnel.
    let page = rig.curl(&[
        "-A",
        "Mozilla/5.0",
        "-H",
        "Accept: text/html",
        "https://b.test/echo",
    ]);
    assert!(
        page.starts_with("<!doctype html>") && page.contains("denied"),
        "{page}"
    );
    assert_eq!(rig.origin_log(), Vec::<String>::new());
    // The check's redirection is passed on for a request, but not for a CONNECT, because no client follows one there.
    assert_eq!(rig.curl_status(&["http://other.test/"]), 302);
    // Each denial is a 403 that ends the connection. A status of 200, as gRPC has it, would grant the tunnel.
    for (host, header) in [
        ("b.test", "Host: b.test:443"),
        ("b.test", "Content-Type: application/grpc"),
        ("other.test", "Accept: */*"),
    ] {
        let request = format!("CONNECT {host}:443 HTTP/1.1\r\n{header}\r\n\r\n");
        let (answer, _) = rig.connect_and_send(request.as_bytes()).recv_to_end();
        assert!(
            answer.starts_with(b"HTTP/1.1 403 "),
            "{header}: {}",
            answer.escape_ascii()
        );
    }
    for line in rig.wait_audit_lines("", 4) {
        assert_eq!(line["status"], 403, "{line}");
    }
}

#[test]
fn denial_has_the_form_of_grpc_or_websocket() {
    let (rig, _check) = start_with_check(&[]);
    let url = "https://a.test/secret/1";
    let grpc = rig.curl(&[
        "-i",
        "-H",
        "Content-Type: application/grpc",
        "-H",
        "TE: trailers",
        url,
    ]);
    assert!(
        grpc.starts_with("HTTP/2 200 ") && grpc.contains("grpc-status: 7"),
        "{grpc}"
    );
    let upgrade = [
        "-H",
        "Connection: Upgrade",
        "-H",
        "Upgrade: websocket",
        "-H",
        "Sec-WebSocket-Version: 13",
        "-H",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ];
    assert_eq!(
        rig.curl_status(&[&["--http1.1"][..], &upgrade, &[url]].concat()),
        403
    );
    assert_eq!(rig.origin_log(), Vec::<String>::new());
}

#[test]
fn check_without_an_answer_denies_unless_fail_open() {
    let rig = InterceptRig::new(&[CHECK_OPTION, "--check-timeout=300ms"]);
    assert_eq!(rig.curl_status(&["http://a.test/echo"]), 503);
    let line = &rig.wait_audit_lines("/echo", 1)[0];
    let reason = "the service that decides did not answer (check_connect)";
    let expected = json!({"decision": "check_failed", "how": "check_connect", "reason": reason});
    assert_fields(line, expected);
    let answer = rig.curl_problem(&["http://a.test/echo"]).to_string();
    let cause = "the service that decides did not answer (check_";
    assert_contains(&answer, &[cause, "try again"]);
    // By now the log lines of the start have been written.
    let log = rig.proxy.log();
    assert!(!log.contains("go on unchecked"), "{log}");

    let rig = InterceptRig::new(&[
        CHECK_OPTION,
        "--on-check-failure=allow",
        "--admin=127.0.0.1:9300",
    ]);
    // The last ones are not sent to the service, because the circuit breaker is open.
    let args = ["-o", "/dev/null", "-w", "%{http_code};"];
    let statuses = rig.curl(&[&args[..], &["http://a.test/echo?[1-15]"]].concat());
    assert_eq!(statuses, "200;".repeat(15));
    assert_eq!(rig.curl_status(&["https://a.test/echo"]), 200);
    for line in rig.wait_audit_lines("/echo", 16) {
        assert_eq!(line["decision"], "failed_open", "{line}");
    }
    let log = rig.proxy.log();
    let warning = "a request goes on unchecked: connecting to the check service failed";
    assert_contains(&log, &["requests go on unchecked until it can", warning]);
    let line = log.lines().find(|line| line.contains(warning));
    let line: Value = serde_json::from_str(line.expect("the warning")).expect("JSON");
    let service = CHECK_OPTION.strip_prefix("--check=").expect("the option");
    assert_eq!(line["service"], service, "{line}");
    // The last URL is checked as a tunnel and as the request inside.
    let counted = r#"peername_check_total{outcome="fail_open"} 17"#;
    let metrics = rig.read_metrics();
    for expected in [counted, "peername_check_suspended 1"] {
        assert!(metrics.lines().any(|line| line == expected), "{metrics}");
    }
}

/// Traffic that can't be inspected is refused, even when its bytes come one by one.
#[test]
fn tunnel_of_neither_tls_nor_http_is_refused() {
    // Not even a rule for the port lets a client hide its requests from the check.
    let (rig, _check) = start_with_check(&["--allow=a.test", "--allow=a.test:7022"]);
    let senders = [
        &b"SSH-2.0-test\r\n"[..],
        b"\0\0\0\0",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\nGET / HTTP/1.1\r\n\r\n",
        b"EHLO x\r\n",
    ];
    for bytes in senders {
        for port in [80, 7022] {
            let connect = format!("CONNECT a.test:{port} HTTP/1.1\r\n\r\n");
            let conn = rig.connect_and_send(connect.as_bytes());
            assert!(recv_head(&conn).starts_with("HTTP/1.1 200 "));
            // The proxy may close before it has read all bytes.
            if bytes.iter().all(|byte| conn.send_if_open(&[*byte])) {
                conn.wait_closed();
            }
        }
    }
    for line in rig.wait_audit_lines("", 2 * senders.len()) {
        let expected = json!({"decision": "refused", "code": "unknown_protocol"});
        assert_fields(&line, expected);
    }
    assert_eq!(rig.origin_log(), Vec::<String>::new());
}

#[test]
fn metrics_count_decisions() {
    let (rig, _check) = start_with_check(&["--admin=203.0.113.1:9090"]);
    rig.curl(&["https://a.test/echo", "https://a.test/secret/1"]);
    rig.wait_audit_lines("/secret/1", 1);
    let get = |path: &str| {
        let url = format!("http://203.0.113.1:9090{path}");
        rig.lab.client.run("curl", &["-sS", &url])
    };
    let metrics = get("/metrics");
    assert_contains(
        &metrics,
        &[
            "peername_intercept_requests_total{decision=\"allowed\"} 1",
            "peername_intercept_requests_total{decision=\"denied\"} 1",
            "peername_certificates_issued_total 1",
            "peername_certificate_cache_hits_total 0",
            "peername_check_seconds_count 3",
        ],
    );
    // On a busy machine, a worker that does not run for two seconds is reported as hanging.
    wait_until("all is well", || get("/healthz") == "ok\n");
    assert_eq!(get("/readyz"), "ready\n");
}

/// Starts a proxy and, on its host, [`CHECK_SERVICE`].
pub(super) fn start_with_check(args: &[&str]) -> (InterceptRig, Process) {
    let stage = InterceptLab::new();
    let check = start_check(&stage.lab, &stage.scratch, CHECK_SERVICE);
    let rig = stage.start(&[&[CHECK_OPTION, LONG_CHECK_TIMEOUT], args].concat());
    (rig, check)
}

/// Starts this Python script as the check service of [`CHECK_OPTION`].
pub(super) fn start_check(lab: &Lab, scratch: &Scratch, script: &str) -> Process {
    let script = scratch.write("check.py", script);
    Process::start(&lab.balancer, "/usr/bin/python3", &["-u", &script]).wait_listening(&[CHECK])
}

/// A forwardAuth service that denies URIs with `secret`, requests with the header X-Open, and the host b.test altogether. It
/// answers requests for other.test with a redirection.
pub(super) const CHECK_SERVICE: &str = include_str!("decisions/service.py");
