//! Refused requests and failed upstream connections: names that differ, invalid certificates, unreachable
//! origins.

use serde_json::json;

use crate::harness::lab::{assert_contains, assert_fields};
use crate::harness::rig::intercept::{InterceptLab, InterceptRig, recv_head};

#[test]
fn request_must_have_one_host_name() {
    let rig = InterceptRig::new(&[]);
    for version in ["--http1.1", "--http2"] {
        let host = rig.curl_problem(&[version, "-H", "Host: b.test", "https://a.test/echo"]);
        assert_eq!(host["code"], "name_mismatch", "{host}");
        let sni = rig.curl_problem(&[
            version,
            "--connect-to",
            "b.test:443:a.test:443",
            "https://b.test/echo",
        ]);
        assert_eq!(sni["code"], "name_mismatch", "{sni}");
    }
    let misdirected = rig.curl_status(&["--http2", "-H", "Host: b.test", "https://a.test/echo"]);
    assert_eq!(
        misdirected, 421,
        "so that a browser tries again on a connection of its own"
    );
    let absolute = rig.curl_problem(&["-H", "Host: b.test", "http://a.test/echo"]);
    assert_eq!(absolute["code"], "name_mismatch", "{absolute}");
    assert_eq!(
        rig.origin_log(),
        Vec::<String>::new(),
        "nothing reached the origin"
    );
}

/// The first request of a connection decides nothing about the second.
#[test]
fn each_request_of_a_connection_is_verified() {
    let rig = InterceptRig::new(&[]);
    let conn = rig.connect_and_send(b"CONNECT a.test:80 HTTP/1.1\r\n\r\n");
    assert!(recv_head(&conn).starts_with("HTTP/1.1 200 "));
    conn.send(b"GET /echo HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(recv_head(&conn).starts_with("HTTP/1.1 200 "));
    conn.send(b"GET /echo HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n");
    let rest = conn.recv_text_to_end();
    assert_contains(&rest, &["HTTP/1.1 403 ", "name_mismatch"]);
    assert_eq!(rig.wait_origin_log(1).len(), 1);
}

#[test]
fn each_certificate_error_has_its_code() {
    let rig = InterceptRig::new(&[]);
    // The expired certificate has a validity of zero days: it is valid in the second it was made in.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    for (host, code) in [
        ("expired.test", "upstream_tls_expired"),
        ("self-signed.test", "upstream_tls_self_signed"),
        // A certificate as `openssl req -x509` makes it: a self-signed authority.
        ("openssl.test", "upstream_tls_ca_certificate"),
        ("other.test", "upstream_tls_wrong_name"),
    ] {
        for version in ["--http1.1", "--http2"] {
            let problem = rig.curl_problem(&[version, &format!("https://{host}/")]);
            assert_fields(&problem, json!({"code": code, "status": 502}));
            let detail = problem["detail"].as_str().expect("a text");
            assert_contains(detail, &["issued by"]);
        }
    }
    assert_eq!(rig.origin_log(), Vec::<String>::new());
}

/// An authority's certificate is accepted for no server, even if it is trusted. A trusted one without CA:TRUE is accepted.
#[test]
fn trusted_certificate_serves_an_origin_unless_it_is_an_authority() {
    let stage = InterceptLab::new();
    let trust = |name: &str| format!("--extra-ca={}", stage.scratch.path_text(name));
    let trusted = [trust("openssl.pem"), trust("self-signed.pem")];
    let rig = stage.start(&[&trusted[0], &trusted[1]]);
    let problem = rig.curl_problem(&["https://openssl.test/"]);
    assert_eq!(problem["code"], "upstream_tls_ca_certificate", "{problem}");
    let text = problem.to_string();
    assert_contains(&text, &["is an authority's (CA:TRUE)"]);
    assert!(!text.contains("not trusted"), "{text}");
    assert_contains(&text, &["CA:FALSE"]);
    assert_eq!(rig.curl_status(&["https://self-signed.test/none"]), 204);
}

#[test]
fn each_connect_error_has_its_code() {
    let (_names, rig) = InterceptLab::new().start_with_unknown_names(&[]);
    let cases = [
        ("https://nowhere.invalid/", 502, "dns_nxdomain"),
        ("https://a.test:9/", 502, "connect_refused"),
        ("http://a.test:9/", 502, "connect_refused"),
    ];
    for (lines_before, (url, status, code)) in cases.into_iter().enumerate() {
        let problem = rig.curl_problem(&[url]);
        assert_fields(&problem, json!({"code": code, "status": status}));
        let id = problem["request_id"].as_str().expect("an id");
        assert!(
            rig.wait_audit_lines("/", lines_before + 1)
                .iter()
                .any(|line| line["id"] == id),
            "{problem}"
        );
    }
}

#[test]
fn error_response_has_the_form_its_client_reads() {
    let rig = InterceptRig::new(&[]);
    let url = "https://self-signed.test/";
    let page = rig.curl(&["-H", "Accept: text/html", url]);
    assert!(page.starts_with("<!doctype html>"), "{page}");
    let grpc = rig.curl(&["-i", "-H", "Content-Type: application/grpc", url]);
    assert!(
        grpc.starts_with("HTTP/2 200 ") && grpc.contains("grpc-status: 14"),
        "{grpc}"
    );
}

/// The header fields of a response to GET, and nothing else (RFC 9110, section 9.3.2).
#[test]
fn error_response_to_head_has_no_body() {
    let rig = InterceptRig::new(&[]);
    let url = "https://self-signed.test/";
    for version in ["--http1.1", "--http2"] {
        let body = rig.curl(&[version, url]);
        let head = rig.curl(&[version, "--head", url]).to_ascii_lowercase();
        let length = format!("\r\ncontent-length: {}\r\n", body.len());
        assert!(
            head.contains(&length) && head.ends_with("\r\n\r\n"),
            "{head}"
        );
    }
}

#[test]
fn request_that_is_no_proxy_request_is_refused() {
    let rig = InterceptRig::new(&[]);
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: proxy.test\r\n\r\n", 400),
        ("GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("CONNECT a.test HTTP/1.1\r\n\r\n", 400),
        ("CONNECT 2130706433:443 HTTP/1.1\r\n\r\n", 400),
        (
            "CONNECT a.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n",
            403,
        ),
        (
            "CONNECT a.test:443 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
            400,
        ),
        (
            "GET http://user@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
            400,
        ),
    ] {
        let conn = rig.connect_and_send(request.as_bytes());
        let head = recv_head(&conn);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request:?}: {head}"
        );
    }
    // A request that can't be parsed has an audit line, too.
    let folded = b"GET http://a.test/folded HTTP/1.1\r\nHost: a.test\r\nX: 1\r\n 2\r\n\r\n";
    let (answer, _) = rig.connect_and_send(folded).recv_to_end();
    assert!(answer.starts_with(b"HTTP/1.1 400 "));
    let line = &rig.wait_audit_lines("/folded", 1)[0];
    assert_fields(line, json!({"decision": "refused", "code": "bad_request"}));
    assert_eq!(rig.origin_log(), Vec::<String>::new());
}
