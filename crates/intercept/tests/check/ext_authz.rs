//! ext_authz over gRPC, with a server built on Envoy's own message types.

use http::{HeaderMap, HeaderValue};
use peername_intercept::authz::{DecidedBy, Decision, Denial, RequestKind, SentHeaders, Verdict};
use serde_json::json;

use crate::rig::{CheckInput, ask, check, client};
use crate::service::{Service, any_loopback};

pub(crate) fn start(answer: &str) -> (Service, String) {
    let mut service = Service::ext_authz(any_loopback());
    service.set_answer(answer);
    let url = format!("grpc://{}", service.address);
    (service, url)
}

pub(crate) fn denial(verdict: &Verdict) -> &Denial {
    match &verdict.decision {
        Decision::Deny(denial) => denial,
        Decision::Allow(_) => panic!("allowed: {:?}", verdict.decided_by),
    }
}

#[tokio::test]
async fn request_has_the_same_fields_as_envoys() {
    let (service, url) = start(OK);
    let input = CheckInput::with(|input| input.body = Some(("hello".into(), true)))
        .header("x-twice", b"1")
        .header("x-twice", b"2")
        .header("x-latin", b"\xe9")
        .header("cookie", b"secret")
        .header("authorization", b"secret");
    assert!(input.ask(&client(&url)).await.decision.allows());
    let request = service.next_request();
    assert!(!request.to_string().contains("secret"));
    let address = |ip, port| json!({ "socketAddress": { "address": ip, "portValue": port } });
    assert_eq!(
        request,
        json!({ "attributes": {
            "source": { "address": address("192.0.2.7", 50_000) },
            "destination": { "address": address("origin.test", 443) },
            "request": { "http": {
                "id": "id-1",
                "method": "GET",
                "headers": {
                    ":authority": "origin.test", ":method": "GET", ":path": "/a?b=c", ":scheme": "https",
                    "x-twice": "1,2", "x-latin": "é", "x-envoy-auth-partial-body": "true",
                },
                "path": "/a?b=c",
                "host": "origin.test",
                "scheme": "https",
                "size": "5",
                "protocol": "HTTP/2",
                "body": "hello",
            } },
            "tlsSession": { "sni": "origin.test" },
            "contextExtensions": {
                "mode": "request", "connect": "origin.test:443", "sni": "origin.test", "alpn": "h2",
                "peer": "198.51.100.1:40000",
            },
        } })
    );
}

#[tokio::test]
async fn tunnel_is_checked_and_credentials_are_sent_if_configured() {
    let (service, url) = start(OK);
    let client = check(&url, |config| config.protocol.sent = SentHeaders::All).client();
    let input = CheckInput {
        kind: RequestKind::Connect,
        method: http::Method::CONNECT,
        scheme: "",
        path: "",
        ..CheckInput::default()
    };
    let input = input.header("cookie", b"a").header("cookie", b"b");
    assert!(input.ask(&client).await.decision.allows());
    let http = &service.next_request()["attributes"]["request"]["http"];
    assert_eq!(http["host"], "origin.test:443");
    assert_eq!(
        http["headers"],
        json!({ ":authority": "origin.test:443", ":method": "CONNECT", "cookie": "a; b" })
    );
    assert_eq!(http["size"], "-1");
}

#[tokio::test]
async fn allow_changes_headers() {
    let (_service, url) = start(
        r#"{"status": {}, "okResponse": {
            "headers": [
                {"header": {"key": "X-Set", "value": "new"}},
                {"header": {"key": "x-append", "value": "new"}, "append": true},
                {"header": {"key": "x-absent", "value": "new"}, "appendAction": "ADD_IF_ABSENT"},
                {"header": {"key": "x-raw", "rawValue": "6Q=="}},
                {"header": {"key": "Host", "value": "other.test"}},
                {"header": {"key": "Transfer-Encoding", "value": "chunked"}}],
            "headersToRemove": ["x-gone", "host"],
            "responseHeadersToAdd": [{"header": {"key": "x-seen", "value": "yes"}}]}}"#,
    );
    let verdict = ask(&client(&url)).await;
    let Decision::Allow(changes) = &verdict.decision else {
        panic!("{verdict:?}");
    };
    let headers = |pairs: &[(&'static str, &'static [u8])]| {
        pairs
            .iter()
            .fold(HeaderMap::new(), |mut all, (name, value)| {
                all.append(*name, HeaderValue::from_bytes(value).unwrap());
                all
            })
    };
    let mut request = headers(&[
        ("host", b"origin.test"),
        ("x-set", b"old"),
        ("x-append", b"old"),
        ("x-absent", b"old"),
        ("x-gone", b"old"),
    ]);
    changes.apply_to_request(&mut request);
    let expected = headers(&[
        ("host", b"origin.test"),
        ("x-set", b"new"),
        ("x-append", b"old"),
        ("x-append", b"new"),
        ("x-absent", b"old"),
        ("x-raw", b"\xe9"),
    ]);
    assert_eq!(request, expected);
    let mut response = HeaderMap::new();
    changes.apply_to_response(&mut response);
    assert_eq!(response, headers(&[("x-seen", b"yes")]));
    assert_eq!(changes.refused(), 3);
}

#[tokio::test]
async fn denial_is_the_clients_response() {
    let (_service, url) = start(
        r#"{"status": {"code": 7, "message": "not\ntoday"}, "deniedResponse": {
            "status": {"code": 429}, "body": "later",
            "headers": [{"header": {"key": "Retry-After", "value": "5"}},
                        {"header": {"key": "Content-Length", "value": "999"}}]}}"#,
    );
    let verdict = ask(&client(&url)).await;
    assert!(matches!(verdict.decided_by, DecidedBy::Service));
    let denial = denial(&verdict);
    assert_eq!(
        (denial.status.as_u16(), &denial.body[..], &*denial.reason),
        (429, &b"later"[..], "not\\ntoday")
    );
    assert_eq!(denial.headers.len(), 1, "{:?}", denial.headers);
    assert_eq!(denial.headers["retry-after"], "5");
}

/// All answers but the first deny, by a decision of the service or because the answer is a failure.
#[tokio::test]
async fn only_an_explicit_allow_allows() {
    let (mut service, url) = start(OK);
    let client = client(&url);
    assert!(ask(&client).await.decision.allows());
    for (answer, is_decision) in [
        ("{}", false),
        (r#"{"status": {"code": 7}}"#, true),
        (r#"{"status": {"code": 7}, "okResponse": {}}"#, true),
        (r#"{"status": {"code": -1}}"#, true),
        (r#"{"deniedResponse": {}}"#, true),
        (r#"{"status": {}, "deniedResponse": {}}"#, false),
        (r#"{"status": {}, "errorResponse": {}}"#, false),
        (
            r#"{"status": {}, "okResponse": {"queryParametersToRemove": ["token"]}}"#,
            false,
        ),
        (r#"error "PERMISSION_DENIED" no"#, false),
        (r#"error "INTERNAL" no"#, false),
        (r#"error "UNAVAILABLE" no"#, false),
        (r#"error "DEADLINE_EXCEEDED" no"#, false),
        (r#"error "OK" no"#, false),
    ] {
        service.set_answer(answer);
        let verdict = ask(&client).await;
        assert_eq!(
            denial(&verdict).status.as_u16(),
            if is_decision { 403 } else { 503 },
            "{answer}"
        );
        assert_eq!(
            matches!(verdict.decided_by, DecidedBy::Service),
            is_decision,
            "{answer}: {:?}",
            verdict.decided_by
        );
        service.set_answer(OK);
        assert!(ask(&client).await.decision.allows(), "after {answer}");
    }
}

#[tokio::test]
async fn status_out_of_range_becomes_403() {
    let (mut service, url) = start(OK);
    let client = client(&url);
    for code in ["200", "101", "304", "99999", "-5", "0"] {
        service.set_answer(&format!(
            r#"{{"status": {{"code": 7}}, "deniedResponse": {{"status": {{"code": {code}}}}}}}"#
        ));
        assert_eq!(denial(&ask(&client).await).status.as_u16(), 403, "{code}");
    }
}

/// A service that exits leaves a dead connection; once the service listens again, the next query succeeds.
#[tokio::test]
async fn restarted_service_is_queried_at_once() {
    let (service, url) = start(OK);
    let address = service.address;
    let client = client(&url);
    assert!(ask(&client).await.decision.allows());
    drop(service);
    assert!(!ask(&client).await.decision.allows());
    let mut service = Service::ext_authz(address);
    service.set_answer(OK);
    let verdict = ask(&client).await;
    assert!(verdict.decision.allows(), "{verdict:?}");
    // The service is restarted between two queries.
    drop(service);
    let mut service = Service::ext_authz(address);
    service.set_answer(OK);
    let verdict = ask(&client).await;
    assert!(verdict.decision.allows(), "{verdict:?}");
}

pub(crate) const OK: &str = r#"{"status": {"code": 0}}"#;
