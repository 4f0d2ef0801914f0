//! Request heads that strict HTTP parsers refuse: each is forwarded in a form that origins can parse, or gets an answer with
//! the reason, and an audit line with the host.

use serde_json::Value;

use crate::harness::lab::{assert_contains, wait_for};
use crate::harness::rig::intercept::{InterceptRig, PROXY_ADDR, recv_head};

/// A query in PromQL as people type it. Over HTTP/2, the proxy asks curl to use HTTP/1.1.
#[test]
fn raw_quotes_and_brackets_of_a_target_reach_the_origin() {
    let rig = InterceptRig::new(&[]);
    for version in ["--http1.1", "--http2"] {
        for scheme in ["http", "https"] {
            let url = format!("{scheme}://a.test/echo/<a>?query=up{{job=\"api\"}}<1");
            let answer = rig.curl(&["--globoff", version, &url]);
            assert!(
                answer.starts_with("GET a.test "),
                "{version} {url}: {answer}"
            );
        }
    }
    for line in rig.wait_origin_log(4) {
        assert_contains(&line, &["/echo/%3Ca%3E?query=up{job=%22api%22}%3C1 "]);
    }
    rig.wait_audit_lines("/echo/%3Ca%3E", 4);
    let line = &wait_refused(&rig, "", 1)[0];
    assert_eq!(line["host"], "a.test", "{line}");
    assert_eq!(line["code"], "bad_request", "{line}");
}

#[test]
fn refused_request_has_an_answer_with_the_reason_and_an_audit_line_with_the_host() {
    let rig = InterceptRig::new(&[]);
    let long = "a".repeat(70_000);
    let many = "X: y\r\n".repeat(201);
    for (count, (request, status, reason)) in [
        (
            "GET / HTTP/2.0\r\nHost: a.test\r\n\r\n".to_owned(),
            400,
            "a version of HTTP",
        ),
        (
            "GET / b HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(),
            400,
            "three words",
        ),
        (
            "GET / HTTP/1.1\r\nHost: a.test\r\nA: b\r\n c\r\n\r\n".to_owned(),
            400,
            "more than one line",
        ),
        (
            "GET / HTTP/1.1\r\nA: \x01\r\nHost: a.test\r\n\r\n".to_owned(),
            400,
            "a control character",
        ),
        (
            "GET / HTTP/1.1\r\nA(: b\r\nHost: a.test\r\n\r\n".to_owned(),
            400,
            "not a token",
        ),
        (
            format!("GET / HTTP/1.1\r\nHost: a.test\r\nX: {long}\r\n\r\n"),
            431,
            "64 KiB",
        ),
        (
            format!("GET / HTTP/1.1\r\nHost: a.test\r\n{many}\r\n"),
            431,
            "200 header lines",
        ),
        (
            "\x16\x03\x01 TLS again".to_owned(),
            400,
            "a TLS ClientHello, which is no HTTP",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let tunnel = rig.connect_and_send(b"CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n");
        assert!(recv_head(&tunnel).starts_with("HTTP/1.1 200 "));
        // The first request tells the proxy that the tunnel carries HTTP.
        tunnel.send(b"GET /echo HTTP/1.1\r\nHost: a.test\r\n\r\n");
        tunnel.recv_text_until(|text| text.contains("GET a.test "));
        tunnel.send_if_open(request.as_bytes());
        let answer = tunnel.recv_text_to_end();
        let shown = request.get(..40).unwrap_or(&request);
        let (head, body) = answer.split_once("\r\n\r\n").expect(shown);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{shown:?}: {answer}"
        );
        let problem: Value = serde_json::from_str(body).expect(shown);
        let detail = problem["detail"].as_str().expect("a text");
        assert!(detail.contains(reason), "{shown:?}: {detail}");
        let lines = rig.wait_audit_lines("/", count + 1);
        let line = &lines[count];
        assert_eq!(line["host"], "a.test", "{shown:?}: {line}");
        assert_eq!(line["status"], status, "{shown:?}: {line}");
        assert_eq!(line["error"], detail, "{shown:?}: {line}");
    }
    // A request to the proxy itself names its host.
    let folded = b"GET http://b.test/b HTTP/1.1\r\nHost: b.test\r\nX: 1\r\n 2\r\n\r\n";
    let (answer, _) = rig.connect_and_send(folded).recv_to_end();
    assert!(answer.starts_with(b"HTTP/1.1 400 "));
    assert_eq!(wait_refused(&rig, "/b", 1)[0]["host"], "b.test");
}

/// The scheme of the client's proxy URL is not `http`. The log has the URL to write instead.
#[test]
fn proxy_url_of_another_scheme_is_logged_with_the_url_to_write() {
    let rig = InterceptRig::new(&[]);
    for (scheme, error) in [
        ("https", "a TLS ClientHello, which is no HTTP request: "),
        ("socks4a", "a SOCKS client, which sends no HTTP: "),
        ("socks5", "a SOCKS client, which sends no HTTP: "),
    ] {
        let before = rig.proxy.count_logged(error);
        let proxy = format!("{scheme}://{PROXY_ADDR}");
        let output = rig.try_curl(&["--proxy", &proxy, "https://a.test/"]);
        assert!(!output.status.success(), "{scheme}: {output:?}");
        let line = wait_for("the refusal", || {
            let log = rig.proxy.log();
            let mut lines = log.lines().filter(|line| line.contains(error));
            lines.nth(before).map(str::to_owned)
        });
        assert_contains(&line, &["bad_request", "https_proxy=http://HOST:PORT"]);
    }
}

/// Waits for audit lines about this path; returns those of refused requests.
fn wait_refused(rig: &InterceptRig, path: &str, count: usize) -> Vec<Value> {
    let lines = rig.wait_audit_lines(path, count);
    lines
        .into_iter()
        .filter(|line| line["decision"] == "refused")
        .collect()
}
