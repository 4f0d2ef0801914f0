//! Trace context (W3C): the check's request and the audit line belong to the trace of the client's request.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::harness::addr::v4;
use crate::harness::check::service::{Opa, Service};
use crate::harness::rig::intercept::{InterceptRig, LONG_CHECK_TIMEOUT};

/// OPA's own log names the trace of the request, even where `--check-header` withholds `traceparent` from the policy.
#[test]
fn opa_decides_within_the_trace_of_the_request() {
    const POLICY: &str = "package egress\nverdict := true\n";
    let check = "--check=opa+http://127.0.0.1:9191/v1/data/egress/verdict";
    for (args, path, seen) in [
        (&[][..], "/echo?all", json!(PARENT)),
        (&["--check-header=accept"], "/echo?few", Value::Null),
    ] {
        let rig = InterceptRig::new(&[args, &[check, LONG_CHECK_TIMEOUT]].concat());
        let opa = rig
            .lab
            .balancer
            .enter(|| Opa::start_with(CHECK, POLICY, &[TRACING]));
        rig.curl(&["-H", TRACED, &format!("https://a.test{path}")]);
        let http = |entry: &Value| entry["input"]["attributes"]["request"]["http"].clone();
        let entry = opa.wait_entry(|entry| http(entry)["path"] == path);
        assert_eq!(entry["trace_id"], TRACE_ID, "{entry}");
        assert_eq!(http(&entry)["headers"]["traceparent"], seen, "{entry}");
        let line = &rig.wait_audit_lines("/echo", 1)[0];
        assert_eq!(line["trace_id"], TRACE_ID, "{line}");
    }
}

#[test]
fn ext_authz_is_called_within_the_trace_of_the_request() {
    let rig = InterceptRig::new(&["--check=grpc://127.0.0.1:9191", LONG_CHECK_TIMEOUT]);
    let mut service = rig.lab.balancer.enter(|| Service::ext_authz(CHECK));
    service.set_answer(r#"{"status": {}}"#);
    rig.curl(&["-H", TRACED, "http://a.test/echo"]);
    let check_request = service.next_request();
    assert_eq!(
        check_request["traceparent"],
        json!([PARENT]),
        "{check_request}"
    );
    let headers = &check_request["attributes"]["request"]["http"]["headers"];
    assert_eq!(headers["traceparent"], PARENT, "{check_request}");
    rig.curl(&["http://a.test/echo"]);
    let check_request = service.next_request();
    assert_eq!(check_request["traceparent"], Value::Null, "{check_request}");
}

#[test]
fn forward_auth_gets_the_trace_of_the_request() {
    let rig = InterceptRig::new(&[
        "--check=http://127.0.0.1:9191/verify",
        "--check-header=accept",
        LONG_CHECK_TIMEOUT,
    ]);
    let mut service = rig.lab.balancer.enter(|| Service::forward_auth(CHECK));
    service.set_answer(r#"{"status": 200, "headers": [], "body": ""}"#);
    let state = "tracestate: vendor=1";
    rig.curl(&["-H", TRACED, "-H", state, "http://a.test/echo"]);
    let check_request = service.next_request();
    let headers = check_request["headers"].as_array().expect("headers");
    for header in [["traceparent", PARENT], ["tracestate", "vendor=1"]] {
        assert!(headers.contains(&json!(header)), "{check_request}");
    }
}

/// A client's header is logged only if it is a valid trace context, and no other one takes its place.
#[test]
fn invalid_trace_context_is_not_logged() {
    let rig = InterceptRig::new(&[]);
    for header in [
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "traceparent: made-up",
        "X-Other: 1",
    ] {
        rig.curl(&["-H", header, "http://a.test/echo"]);
    }
    for line in rig.wait_audit_lines("/echo", 3) {
        assert_eq!(line.get("trace_id"), None, "{line}");
    }
    assert!(!rig.proxy.log().contains("made-up"));
}

/// Each request has a trace of its own, so a cache that compared it would never hit.
#[test]
fn requests_of_different_traces_share_a_cached_decision() {
    let rig = InterceptRig::new(&[
        "--check=grpc://127.0.0.1:9191",
        "--check-cache=1m",
        LONG_CHECK_TIMEOUT,
    ]);
    let mut service = rig.lab.balancer.enter(|| Service::ext_authz(CHECK));
    service.set_answer(r#"{"status": {}}"#);
    let other = TRACED.replace(TRACE_ID, "0af7651916cd43dd8448eb211c80319c");
    for header in [TRACED, &other] {
        rig.curl(&["-H", header, "http://a.test/echo"]);
    }
    assert_eq!(service.count_requests(), 1);
}

const CHECK: SocketAddr = v4([127, 0, 0, 1], 9191);
/// Has OPA log the trace of each request. No collector gets its spans.
const TRACING: &str = "--set=distributed_tracing.type=grpc";
const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACED: &str = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
