//! forwardAuth over HTTP/1.1, as Traefik sends it.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use peername_intercept::authz::{DecidedBy, Decision, SentHeaders};
use serde_json::Value;

use crate::ext_authz::denial;
use crate::rig::{CheckInput, ask, check, client, failure};
use crate::service::{Service, any_loopback};

pub(crate) fn start(answer: &str) -> (Service, String) {
    let mut service = Service::forward_auth(any_loopback());
    service.set_answer(answer);
    let url = format!("http://{}/verify?by=test", service.address);
    (service, url)
}

/// The values of a header in a request that the service printed.
fn header_values<'a>(request: &'a Value, name: &str) -> Vec<&'a str> {
    request["headers"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|pair| pair[0] == name)
        .map(|pair| pair[1].as_str().expect("text"))
        .collect()
}

#[tokio::test]
async fn request_has_the_same_headers_as_traefiks() {
    let (service, url) = start(OK);
    let input = CheckInput {
        method: http::Method::POST,
        port: 8443,
        ..CheckInput::default()
    }
    .header("user-agent", b"curl")
    .header("x-twice", b"1")
    .header("x-twice", b"2")
    .header("cookie", b"secret")
    .header("host", b"elsewhere.test")
    .header("content-length", b"5")
    .header("transfer-encoding", b"chunked")
    .header("connection", b"upgrade")
    .header("if-none-match", b"\"x\"")
    .header("x-forwarded-host", b"elsewhere.test")
    .header("x-forwarded-server", b"elsewhere.test")
    .header("x-peername-user", b"root")
    // A service behind CGI or WSGI can't tell these names from that with hyphens.
    .header("x_forwarded_uri", b"/harmless")
    .header("x.forwarded.uri", b"/harmless");
    assert!(input.ask(&client(&url)).await.decision.allows());
    let request = service.next_request();
    assert_eq!(request["line"], "GET /verify?by=test HTTP/1.1");
    let service_address = service.address.to_string();
    for (name, expected) in [
        ("x-forwarded-method", vec!["POST"]),
        ("x-forwarded-proto", vec!["https"]),
        ("x-forwarded-host", vec!["origin.test:8443"]),
        ("x-forwarded-port", vec!["8443"]),
        ("x-forwarded-uri", vec!["/a?b=c"]),
        ("x-forwarded-for", vec!["192.0.2.7"]),
        ("x-request-id", vec!["id-1"]),
        ("x-peername-mode", vec!["request"]),
        ("x-peername-connect", vec!["origin.test:8443"]),
        ("x-peername-sni", vec!["origin.test"]),
        ("x-peername-user", vec![]),
        ("x_forwarded_uri", vec![]),
        ("x.forwarded.uri", vec![]),
        ("user-agent", vec!["curl"]),
        ("x-twice", vec!["1", "2"]),
        ("host", vec![&service_address]),
        ("cookie", vec![]),
        ("content-length", vec![]),
        ("transfer-encoding", vec![]),
        ("connection", vec![]),
        ("if-none-match", vec![]),
        ("x-forwarded-server", vec![]),
    ] {
        assert_eq!(header_values(&request, name), expected, "{name}");
    }
}

#[tokio::test]
async fn header_is_sent_by_the_name_that_is_configured() {
    let (service, url) = start(OK);
    let client = check(&url, |config| {
        let names = ["x_user", "x_forwarded_uri"].map(HeaderName::from_static);
        config.protocol.sent = SentHeaders::Only(names.into());
    })
    .client();
    let input = CheckInput::default()
        .header("x_user", b"alice")
        .header("x-user", b"bob")
        .header("x_forwarded_uri", b"/harmless");
    assert!(input.ask(&client).await.decision.allows());
    let request = service.next_request();
    assert_eq!(header_values(&request, "x_user"), ["alice"]);
    for name in ["x-user", "x_forwarded_uri"] {
        assert_eq!(header_values(&request, name), [""; 0], "{name}");
    }
}

#[tokio::test]
async fn denial_is_the_clients_response_verbatim() {
    let (mut service, url) = start(OK);
    let client = client(&url);
    for status in [302, 401, 403, 404, 429] {
        service.set_answer(&format!(
            r#"{{"status": {status}, "headers": [["Location", "/login"], ["Set-Cookie", "a=1"], ["Set-Cookie", "b=2"],
            ["Keep-Alive", "timeout=5"]], "body": "no"}}"#
        ));
        let verdict = ask(&client).await;
        assert!(matches!(verdict.decided_by, DecidedBy::Service));
        let denial = denial(&verdict);
        assert_eq!(
            (denial.status.as_u16(), &denial.body[..]),
            (status, &b"no"[..])
        );
        assert_eq!(denial.headers["location"], "/login");
        assert_eq!(denial.headers.get_all("set-cookie").iter().count(), 2);
        assert!(!denial.headers.contains_key(header::CONTENT_LENGTH));
        assert!(!denial.headers.contains_key("keep-alive"));
    }
}

#[tokio::test]
async fn only_2xx_allows_and_5xx_is_a_failure() {
    let (mut service, url) = start(OK);
    let client = client(&url);
    for (status, expected) in [
        (200, None),
        (204, None),
        (299, None),
        (300, Some(403)),
        (304, Some(403)),
        (400, Some(400)),
        (500, Some(503)),
        (502, Some(503)),
        (999, Some(403)),
    ] {
        service.set_answer(&format!(
            r#"{{"status": {status}, "headers": [], "body": ""}}"#
        ));
        let verdict = ask(&client).await;
        match expected {
            None => assert!(verdict.decision.allows(), "{status}"),
            Some(sent) => assert_eq!(denial(&verdict).status.as_u16(), sent, "{status}"),
        }
        let is_failure = failure(&verdict).is_some();
        assert_eq!(is_failure, expected == Some(503), "{status}");
    }
}

#[tokio::test]
async fn header_taken_from_the_answer_overrides_the_clients() {
    let (mut service, url) = start(OK);
    let client = check(&url, |config| {
        config.protocol.take = ["x-user", "x-groups"]
            .map(|name| name.parse().unwrap())
            .into();
    })
    .client();
    service.set_answer(
        r#"{"status": 200, "headers": [["X-Groups", "a"], ["X-Groups", "b"], ["X-Other", "c"], ["Host", "d"]], "body": ""}"#,
    );
    let verdict = ask(&client).await;
    let Decision::Allow(changes) = &verdict.decision else {
        panic!("{verdict:?}");
    };
    let mut request = HeaderMap::new();
    for name in ["x-user", "x-groups", "host"] {
        request.insert(name, HeaderValue::from_static("root"));
    }
    changes.apply_to_request(&mut request);
    assert!(!request.contains_key("x-user") && !request.contains_key("x-other"));
    assert_eq!(
        request.get_all("x-groups").iter().collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert_eq!(request["host"], "root");
}

#[tokio::test]
async fn connection_is_reused() {
    let (service, url) = start(OK);
    let client = client(&url);
    assert!(ask(&client).await.decision.allows());
    let first = service.next_request()["from"].clone();
    for _ in 0..10 {
        assert!(ask(&client).await.decision.allows());
        assert_eq!(service.next_request()["from"], first);
    }
}

pub(crate) const OK: &str = r#"{"status": 200, "headers": [], "body": ""}"#;
