//! Requests that are forwarded without a check, by each protocol and form of target.

use serde_json::json;

use crate::harness::lab::{assert_contains, assert_fields};
use crate::harness::peername::words;
use crate::harness::rig::intercept::{CLIENT_IP, InterceptRig};

#[test]
fn curl_reaches_nginx_through_connect_by_http1_and_http2() {
    let rig = InterceptRig::new(&[]);
    let http1 = rig.curl(&["--http1.1", "https://a.test/echo"]);
    assert!(http1.starts_with("GET a.test HTTP/1.1 "), "{http1}");
    let http2 = rig.curl(&["--http2", "-w", "%{http_version}", "https://b.test/echo"]);
    assert!(http2.starts_with("GET b.test HTTP/2.0 "), "{http2}");
    assert!(http2.ends_with("\n2"), "{http2}");
    let log = rig.wait_origin_log(2);
    assert!(
        log[0].contains("GET /echo HTTP/1.1") && log[1].contains("GET /echo HTTP/2.0"),
        "{log:?}"
    );
}

/// An origin that speaks HTTP/1.1 only is reached from HTTP/2 the first time, and its protocol is remembered.
#[test]
fn client_gets_the_protocol_that_the_origin_speaks() {
    let rig = InterceptRig::new(&["--workers=1"]);
    let args = words("--http2 -o /dev/null -w %{http_version} https://h1.test/");
    let version = || rig.curl(&args);
    assert_eq!([version(), version()], ["2", "1.1"]);
    let answer = rig.curl(&["--http2-prior-knowledge", "https://h1.test/echo"]);
    assert!(answer.starts_with("GET h1.test HTTP/1.1 "), "{answer}");
}

#[test]
fn absolute_form_request_goes_to_its_host() {
    let rig = InterceptRig::new(&[]);
    let answer = rig.curl(&[
        "-H",
        "X-Mine: 1",
        "http://a.test/echo",
        "http://b.test/echo",
    ]);
    let lines: Vec<_> = answer.lines().collect();
    assert!(
        lines[0].starts_with("GET a.test HTTP/1.1 te= x=1 via= proxy="),
        "{answer}"
    );
    assert!(lines[1].starts_with("GET b.test HTTP/1.1 "), "{answer}");
    // A plain HTTP request inside a tunnel is forwarded, too.
    let tunnelled = rig.curl(&["--proxytunnel", "http://a.test/echo"]);
    assert!(tunnelled.starts_with("GET a.test HTTP/1.1 "), "{tunnelled}");
}

/// Some clients send an `https:` URL in absolute form rather than a CONNECT. The proxy verifies the origin for them.
#[test]
fn absolute_form_request_for_https_goes_over_tls() {
    let rig = InterceptRig::new(&["--deny=a.test/no", "--allow=*"]);
    let ask = |url: &str, host: &str| {
        let request = format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let conn = rig.connect_and_send(request.as_bytes());
        // The echo of one or the other port of the origin, or a problem document.
        let ends = ["via=", "HTTP/1.1\n", "\"code\""];
        conn.recv_text_until(|text| ends.iter().any(|end| text.contains(end)))
    };
    let served = ask("https://a.test/echo", "a.test");
    assert_contains(&served, &["\r\n\r\nGET a.test HTTP/"]);
    let other_port = ask("HTTPS://a.test:8443/echo", "a.test:8443");
    assert_contains(&other_port, &["GET a.test:8443 "]);
    assert!(ask("https://a.test/no", "a.test").contains("\"denied\""));
    assert!(ask("https://a.test/echo", "b.test").contains("\"name_mismatch\""));
    assert!(ask("https://expired.test/", "expired.test").contains("\"upstream_tls_"));
    let log = rig.wait_origin_log(1);
    assert!(log[0].contains(" https a.test GET /echo "), "{log:?}");
}

#[test]
fn bodies_stream_both_ways() {
    let rig = InterceptRig::new(&[]);
    let large = rig.scratch.path_text("large");
    let whole = rig.scratch.read("large");
    for version in ["--http1.1", "--http2"] {
        let target = format!("https://a.test/dav/{version}");
        let upload = ["-T", &large, version];
        assert_eq!(
            rig.curl_status(&[&upload[..], &[&target]].concat()),
            201,
            "{version}"
        );
        let chunked = ["-H", "Transfer-Encoding: chunked"];
        assert_eq!(
            rig.curl_status(&[&upload[..], &chunked, &[&target]].concat()),
            204,
            "{version}"
        );
        assert_eq!(rig.scratch.read(&format!("dav/{version}")), whole);
        assert_eq!(
            rig.curl(&[version, "https://a.test/large"]),
            whole,
            "{version}"
        );
    }
}

#[test]
fn each_request_has_one_audit_line() {
    let rig = InterceptRig::new(&[]);
    rig.curl(&["--http2", "-d", "12345", "https://a.test/put?secret=1"]);
    let line = &rig.wait_audit_lines("/put", 1)[0];
    let expected = json!({
        "connect": "a.test:443", "sni": "a.test", "alpn": "h2", "tls": "1.3", "scheme": "https",
        "host": "a.test", "method": "POST", "status": 200, "bytes_to_upstream": 5,
        "decision": "unchecked", "upstream": "10.81.0.1:443", "upstream_tls": "1.3",
        "reused": false, "end": "complete",
    });
    assert_fields(line, expected);
    assert!(
        line["client"]
            .as_str()
            .is_some_and(|client| client.starts_with(CLIENT_IP)),
        "{line}"
    );
    assert!(
        !rig.proxy.log().contains("secret"),
        "a query stays out of the log"
    );
}

/// A browser that learns of HTTP/3 would bypass the proxy by UDP.
#[test]
fn alt_svc_is_removed() {
    let rig = InterceptRig::new(&[]);
    let answer = rig.curl(&["-i", "https://a.test/alt"]);
    assert!(
        answer.ends_with("alt\n") && !answer.to_lowercase().contains("alt-svc"),
        "{answer}"
    );
}
