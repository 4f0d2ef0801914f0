//! Check protocols, each with a scripted or a real service: what it sees, and what its decision does.

use serde_json::{Value, json};

use crate::harness::addr::{fresh_client_v4, v4};
use crate::harness::backend::Backend;
use crate::harness::check::service::{Opa, Service};
use crate::harness::header_bytes;
use crate::harness::lab::{assert_contains, assert_fields, stderr_text, wait_until};
use crate::harness::rig::intercept::{
    InterceptLab, InterceptRig, LONG_CHECK_TIMEOUT, PROXY_ADDR, recv_head,
};

/// A check service, scripted or real.
enum CheckService {
    /// A service whose answer the test sets, and its answer for a denial.
    Scripted(Service, &'static str),
    /// OPA with a policy that allows some requests and denies others.
    Opa(Opa),
}

impl CheckService {
    fn set_denial(&mut self) {
        if let Self::Scripted(service, denial) = self {
            service.set_answer(denial);
        }
    }

    /// Waits for the check's request about this path, or about a tunnel; returns it in terms common to all protocols.
    fn wait_request(&self, path: Option<&str>) -> Value {
        match self {
            Self::Scripted(service, _) => {
                let check_request = service.next_request();
                match check_request.get("headers") {
                    Some(headers) => forward_auth_terms(headers),
                    None => ext_authz_terms(&check_request),
                }
            }
            Self::Opa(opa) => {
                let wanted = json!(path);
                ext_authz_terms(
                    &opa.wait_decision_about(|input| ext_authz_terms(input)["path"] == wanted),
                )
            }
        }
    }
}

/// The terms of an ext_authz request that all protocols have; OPA's input has the same shape.
fn ext_authz_terms(check_request: &Value) -> Value {
    let attributes = &check_request["attributes"];
    let http = &attributes["request"]["http"];
    let extensions = &attributes["contextExtensions"];
    json!({
        "mode": extensions["mode"],
        "client": attributes["source"]["address"]["socketAddress"]["address"],
        "connect": extensions["connect"],
        "sni": extensions["sni"],
        "method": http["method"],
        "host": http["host"],
        // Protobuf can't tell an empty path from none: a tunnel has none.
        "path": http["path"].as_str().filter(|path| !path.is_empty()),
    })
}

fn forward_auth_terms(headers: &Value) -> Value {
    let headers = headers.as_array().expect("headers");
    let header = |name: &str| {
        headers
            .iter()
            .find(|header| header[0] == name)
            .map(|header| &header[1])
    };
    json!({
        "mode": header("x-peername-mode"),
        "client": header("x-forwarded-for"),
        "connect": header("x-peername-connect"),
        "sni": header("x-peername-sni"),
        "method": header("x-forwarded-method"),
        "host": header("x-forwarded-host"),
        "path": header("x-forwarded-uri"),
    })
}

/// Asserts what the service was asked, and that its decision was obeyed: a decision to allow sets a header of the request.
fn assert_asked_and_obeyed(
    check: &str,
    args: &[&str],
    start: impl FnOnce(&InterceptRig) -> CheckService,
) {
    let check = format!("--check={check}");
    let rig = InterceptRig::new(
        &[
            &[&*check, "--accept-proxy=203.0.113.9", LONG_CHECK_TIMEOUT],
            args,
        ]
        .concat(),
    );
    let mut service = start(&rig);
    // An address outside --accept-proxy: its connections begin without a header.
    rig.lab.client.add_addresses("eth0", &["203.0.113.10/24"]);
    let from = ["--interface", "203.0.113.10"];

    let answer = rig.curl(&[&from[..], &["https://a.test/echo?q=1"]].concat());
    assert!(answer.starts_with("GET a.test HTTP/2.0 "), "{answer}");
    assert_contains(&answer, &[" x=set "]);
    let tunnel = json!({ "mode": "connect", "client": "203.0.113.10", "connect": "a.test:443", "sni": null,
        "method": "CONNECT", "host": "a.test:443", "path": null });
    assert_eq!(service.wait_request(None), tunnel);
    let inside = json!({ "mode": "request", "client": "203.0.113.10", "connect": "a.test:443",
        "sni": "a.test", "method": "GET", "host": "a.test", "path": "/echo?q=1" });
    assert_eq!(service.wait_request(Some("/echo?q=1")), inside);

    let balanced = fresh_client_v4();
    let request = b"GET http://a.test/echo?q=2 HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let bytes = [&header_bytes::v2(balanced, PROXY_ADDR, &[])[..], request].concat();
    let conn = rig.connect_and_send(&bytes);
    assert!(recv_head(&conn).starts_with("HTTP/1.1 200 "));
    let plain = json!({ "mode": "request", "client": balanced.ip().to_string(), "connect": null, "sni": null,
        "method": "GET", "host": "a.test", "path": "/echo?q=2" });
    assert_eq!(service.wait_request(Some("/echo?q=2")), plain);
    wait_until("nginx logs both", || rig.origin_log().len() == 2);

    service.set_denial();
    let refused = rig.try_curl(&[&from[..], &["https://b.test/echo"]].concat());
    assert_contains(&stderr_text(&refused), &["tunnel failed, response 451"]);
    let answer = rig.curl(&[&from[..], &["-i", "http://a.test/no"]].concat());
    assert!(
        answer.starts_with("HTTP/1.1 451 ") && answer.ends_with("\r\n\r\nby law"),
        "{answer}"
    );
    assert_eq!(
        rig.origin_log().len(),
        2,
        "no denied request reached the origin"
    );
    let line = &rig.wait_audit_lines("/no", 1)[0];
    assert_fields(line, json!({"decision": "denied", "status": 451}));
}

#[test]
fn ext_authz_sees_the_request_and_decides() {
    const YES: &str = r#"{"status": {}, "okResponse": {"headers": [{"header": {"key": "x-mine", "value": "set"}}]}}"#;
    const NO: &str =
        r#"{"status": {"code": 7}, "deniedResponse": {"status": {"code": 451}, "body": "by law"}}"#;
    assert_asked_and_obeyed("grpc://127.0.0.1:9191", &[], |rig| {
        let mut service = rig.lab.balancer.enter(|| Service::ext_authz(CHECK));
        service.set_answer(YES);
        CheckService::Scripted(service, NO)
    });
}

/// `--check-take` names the headers of the service's response that are for the origin.
#[test]
fn forward_auth_sees_the_request_and_decides() {
    const YES: &str = r#"{"status": 200, "headers": [["x-mine", "set"]], "body": ""}"#;
    const NO: &str = r#"{"status": 451, "headers": [], "body": "by law"}"#;
    let take = ["--check-take=X-Mine"];
    assert_asked_and_obeyed("http://127.0.0.1:9191/verify", &take, |rig| {
        let mut service = rig.lab.balancer.enter(|| Service::forward_auth(CHECK));
        service.set_answer(YES);
        CheckService::Scripted(service, NO)
    });
}

#[test]
fn opa_sees_the_request_and_decides() {
    const POLICY: &str = r#"package egress
http := input.attributes.request.http
is_listed if { http.method == "CONNECT"; http.host == "a.test:443" }
is_listed if { startswith(http.path, "/echo") }
verdict := {"allow": true, "headers": {"x-mine": "set"}} if is_listed
else := {"allow": false, "http_status": 451, "body": "by law"}
"#;
    let rule = "opa+http://127.0.0.1:9191/v1/data/egress/verdict";
    assert_asked_and_obeyed(rule, &[], |rig| {
        CheckService::Opa(rig.lab.balancer.enter(|| Opa::start_at(CHECK, POLICY)))
    });
}

/// The policy reads bodies up to the limit, and the origin gets the whole body of each allowed request.
#[test]
fn check_sees_the_body_up_to_its_limit() {
    const POLICY: &str = r#"package egress
http := input.attributes.request.http
default verdict := false
verdict if http.method == "CONNECT"
verdict if { not contains(http.body, "secret"); not is_cut_short }
is_cut_short if { input.truncated_body; startswith(http.path, "/dav/whole") }
"#;
    let stage = InterceptLab::new();
    let _opa = stage.lab.balancer.enter(|| Opa::start_at(CHECK, POLICY));
    let rule = "--check=opa+http://127.0.0.1:9191/v1/data/egress/verdict";
    let rig = stage.start(&[rule, "--check-body=1000", LONG_CHECK_TIMEOUT]);
    let large = rig.scratch.path_text("large");
    let put = |version, path: &str, args: &[&str]| {
        let url = format!("https://a.test/dav/{path}");
        rig.curl_status(&[&[version, "-X", "PUT"][..], args, &[&url]].concat())
    };
    for version in ["--http1.1", "--http2"] {
        let long = format!("{}secret", "x".repeat(994));
        for (name, body, status) in [
            ("short", "secret", 403),
            ("as-long-as-the-limit", &long, 403),
            ("allowed", "nothing", 201),
        ] {
            let path = format!("{version}-{name}");
            assert_eq!(put(version, &path, &["--data", body]), status, "{name}");
        }
        assert_eq!(put(version, "whole", &["-T", &large]), 403);
        let chunked = ["-H", "Transfer-Encoding: chunked", "-T", &large];
        for (name, args) in [("length", &chunked[2..]), ("chunked", &chunked)] {
            let path = format!("{version}-{name}");
            assert_eq!(put(version, &path, args), 201);
            let whole = rig.scratch.read("large");
            assert!(rig.scratch.read(&format!("dav/{path}")) == whole, "{path}");
        }
        assert_eq!(
            rig.scratch.read(&format!("dav/{version}-allowed")),
            "nothing"
        );
    }
}

/// A bidirectional stream sends its first messages and waits for a response, so the policy sees the part of the body that has
/// come. The audit line says how much it has seen.
#[test]
fn stream_that_waits_for_responses_is_checked_without_the_rest_of_its_body() {
    let stage = InterceptLab::new();
    let policy = stage.scratch.write("policy.rego", BODY_POLICY);
    let rig = stage.start(&[
        &format!("--check=rego:{policy}"),
        LONG_CHECK_TIMEOUT,
        "--check-body=1000",
        "--check-body-exempt=application/grpc",
        "--allow-destination=10.81.0.1:9001",
    ]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    for (count, (kind, first, seen)) in [
        ("application/connect+json", "hello", "partial"),
        ("application/grpc+proto", "anything", "exempt"),
    ]
    .into_iter()
    .enumerate()
    {
        let head = format!(
            "POST http://a.test:9001/call HTTP/1.1\r\nHost: a.test:9001\r\nContent-Type: {kind}\r\n\
             Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n",
            first.len()
        );
        let client = rig.connect_and_send(head.as_bytes());
        let up = origin.accept();
        up.recv_text_until(|text| text.contains(first));
        up.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n");
        client.recv_text_until(|text| text.contains("one"));
        client.send(b"3\r\ntwo\r\n0\r\n\r\n");
        up.recv_text_until(|text| text.contains("two"));
        up.send(b"0\r\n\r\n");
        let line = &rig.wait_audit_lines("/call", count + 1)[count];
        assert_eq!(line["check_body"], seen, "{line}");
    }
}

const BODY_POLICY: &str = r#"
package egress
http := input.attributes.request.http
default allow := false
allow if contains(http.body, "hello")
allow if startswith(http.headers["content-type"], "application/grpc")
"#;

const CHECK: std::net::SocketAddr = v4([127, 0, 0, 1], 9191);
