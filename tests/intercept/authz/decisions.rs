//! No request reaches an origin without the check's decision, and a denial has a form that its client
//! understands.

use serde_json::json;

use crate::harness::addr::v4;
use crate::harness::lab::{Host, Process, assert_contains, assert_fields, wait_until};
use crate::harness::rig::intercept::{
    CLIENT_IP, InterceptLab, InterceptRig, LONG_CHECK_TIMEOUT, recv_head,
};

const CHECK: std::net::SocketAddr = v4([127, 0, 0, 1], 9191);
pub(crate) const ASKED: &str = "--check=http://127.0.0.1:9191/";

#[test]
fn denied_request_never_reaches_the_origin() {
    let (rig, check) = start_checked(&[]);
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
    for question in [&request, "connect CONNECT - a.test:443 -"] {
        let is_it = |line: &str| line.contains(question).then_some(());
        check.wait_line(question, is_it);
    }
    let line = &rig.wait_audit_lines("/secret/1", 1)[0];
    assert_fields(line, json!({"decision": "denied", "how": "asked"}));
}

/// The first request of a connection was allowed; that decides nothing about the next.
#[test]
fn each_request_of_a_connection_is_checked() {
    let (rig, _check) = start_checked(&[]);
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
    let (rig, _check) = start_checked(&[]);
    let output = rig.try_curl(&["-v", "https://b.test/echo"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_contains(&said, &["CONNECT tunnel failed, response 403"]);
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
    // The connection to the proxy can't be used any further. The status of a denied CONNECT can't be 200, as gRPC would
    // have it: that grants the tunnel, whatever else the response says. Nor can it be a redirection, which no client
    // follows for a CONNECT; for a request it can.
    assert_eq!(rig.curl_status(&["http://other.test/"]), 302);
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
    let (rig, _check) = start_checked(&[]);
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
    let rig = InterceptRig::new(&[ASKED, "--check-timeout=300ms"]);
    assert_eq!(rig.curl_status(&["http://a.test/echo"]), 503);
    let line = &rig.wait_audit_lines("/echo", 1)[0];
    let reason = "the service that decides did not answer (check_connect)";
    let expected = json!({"decision": "check_failed", "how": "check_connect", "reason": reason});
    assert_fields(line, expected);
    let answer = rig.curl_problem(&["http://a.test/echo"]).to_string();
    let words = "the service that decides did not answer (check_";
    assert_contains(&answer, &[words, "try again"]);
    // The log lines of the start have come by then.
    let log = rig.proxy.log();
    assert!(!log.contains("go on unchecked"), "{log}");

    let rig = InterceptRig::new(&[ASKED, "--on-check-failure=allow", "--admin=127.0.0.1:9300"]);
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
    // The last URL is checked as a tunnel and as the request inside.
    let counted = r#"peername_check_total{outcome="fail_open"} 17"#;
    let metrics = rig.read_metrics();
    for expected in [counted, "peername_check_suspended 1"] {
        assert!(metrics.lines().any(|line| line == expected), "{metrics}");
    }
}

/// Traffic that can't be inspected is refused, also when it comes in pieces or not at all.
#[test]
fn tunnel_of_neither_tls_nor_http_is_refused() {
    // Nor does a rule for the port let the client choose what the check sees.
    let (rig, _check) = start_checked(&["--allow=a.test", "--allow=a.test:7022"]);
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
            // The proxy may close before it has read all of them.
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
    let (rig, _check) = start_checked(&["--admin=203.0.113.1:9090"]);
    rig.curl(&["https://a.test/echo", "https://a.test/secret/1"]);
    rig.wait_audit_lines("/secret/1", 1);
    let metrics = rig
        .lab
        .client
        .run("curl", &["-sS", "http://203.0.113.1:9090/metrics"]);
    for line in [
        "peername_intercept_requests_total{decision=\"allowed\"} 1",
        "peername_intercept_requests_total{decision=\"denied\"} 1",
        "peername_certificates_issued_total 1",
        "peername_certificate_cache_hits_total 0",
        "peername_check_seconds_count 3",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let ready = |path: &str| {
        rig.lab
            .client
            .run("curl", &["-sS", &format!("http://203.0.113.1:9090{path}")])
    };
    // A worker that other processes keep from running for two seconds is reported as hanging.
    wait_until("all is well", || ready("/healthz") == "ok\n");
    assert_eq!(ready("/readyz"), "ready\n");
}

/// With a forwardAuth service beside the proxy that denies `/secret` on any host, and b.test altogether.
pub(crate) fn start_checked(args: &[&str]) -> (InterceptRig, Process) {
    let stage = InterceptLab::new();
    let check = start(
        &stage.lab.balancer,
        &stage.scratch.write("check.py", SERVICE),
    );
    (
        stage.start(&[&[ASKED, LONG_CHECK_TIMEOUT], args].concat()),
        check,
    )
}

pub(crate) fn start(host: &Host, script: &str) -> Process {
    Process::start(host, "/usr/bin/python3", &["-u", script]).wait_listening(&[CHECK])
}

pub(crate) const SERVICE: &str = include_str!("decisions/service.py");
