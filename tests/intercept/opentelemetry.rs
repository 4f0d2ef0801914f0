//! Spans of requests, as an OpenTelemetry Collector receives them. The proxy is confined, as always.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::addr::v4;
use crate::harness::admin::{ADMIN, wait_metric};
use crate::harness::backend::Backend;
use crate::harness::check::service::Service;
use crate::harness::lab::{assert_contains, assert_fields, wait_until};
use crate::harness::peername::User;
use crate::harness::programs::collector::Collector;
use crate::harness::rig::intercept::{
    CLIENT_IP, InterceptLab, InterceptRig, LONG_CHECK_TIMEOUT, recv_head,
};
use crate::harness::rig::jail::JailRig;

#[test]
fn allowed_request_has_a_span_to_which_its_audit_line_and_its_check_belong() {
    let stage = InterceptLab::new();
    let collector = start_collector(&stage);
    let mut service = stage.lab.balancer.enter(|| Service::ext_authz(CHECK));
    service.set_answer(r#"{"status": {}}"#);
    let rig = stage.start(&[
        OTLP,
        "--check=grpc://127.0.0.1:9191",
        LONG_CHECK_TIMEOUT,
        ADMIN,
    ]);
    rig.proxy.wait_started();
    assert_eq!(rig.proxy.status_field("Seccomp"), "2", "confined");
    rig.curl(&["--http2", "https://a.test/echo?secret=1"]);
    let span = collector.wait_span("/echo");
    let line = &rig.wait_audit_lines("/echo", 1)[0];
    // Kind 2 is SERVER.
    let expected = json!({
        "name": "GET", "kind": 2, "parentSpanId": null, "status": {},
        "traceId": line["trace_id"], "spanId": line["span_id"],
    });
    assert_fields(&span, expected);
    let attributes = &span["attributes"];
    let expected = json!({
        "http.request.method": "GET", "url.scheme": "https", "url.path": "/echo",
        "server.address": "a.test", "server.port": 443, "http.response.status_code": 200,
        "client.address": CLIENT_IP, "network.protocol.version": "2", "error.type": null,
        "peername.decision": "allowed", "peername.how": "asked", "peername.query": true,
        "peername.end": "complete",
    });
    assert_fields(attributes, expected);
    for name in [
        "id",
        "connection",
        "sni",
        "check_ms",
        "bytes_to_downstream",
        "upstream",
    ] {
        assert_eq!(
            attributes[format!("peername.{name}")],
            line[name],
            "{name}: {span}, {line}"
        );
    }
    assert_eq!(span["resource"]["service.name"], "peername", "{span}");
    assert_eq!(
        span["resource"]["service.version"],
        env!("CARGO_PKG_VERSION"),
        "{span}"
    );
    assert!(!collector.log().contains("secret"), "{}", collector.log());
    // The service is asked about the tunnel, too, which has no audit line of its own.
    let tunnel = collector.wait_span_with("http.request.method", "CONNECT");
    for span in [&tunnel, &span] {
        let check_request = service.next_request();
        assert_eq!(
            check_request["traceparent"],
            json!([traceparent(span)]),
            "{check_request}"
        );
    }
    wait_metric(
        &rig.lab.balancer,
        &[],
        r#"peername_intercept_spans_total{outcome="exported"} 2"#,
    );
}

/// The origin gets the header as the client wrote it: what is checked is what is sent.
#[test]
fn span_continues_the_trace_of_the_client_if_that_is_sampled() {
    let stage = InterceptLab::new();
    let collector = start_collector(&stage);
    let mut service = stage.lab.balancer.enter(|| Service::forward_auth(CHECK));
    service.set_answer(r#"{"status": 200, "headers": [], "body": ""}"#);
    let rig = stage.start(&[
        OTLP,
        "--check=http://127.0.0.1:9191/verify",
        LONG_CHECK_TIMEOUT,
    ]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let (sampled, not_sampled) = (format!("{PARENT}-01"), format!("{PARENT}-00"));
    for (path, sent) in [("/unsampled", &not_sampled), ("/sampled", &sampled)] {
        let request = format!(
            "GET http://a.test:9001{path} HTTP/1.1\r\nHost: a.test:9001\r\ntraceparent: {sent}\r\n\
             Connection: close\r\n\r\n"
        );
        let client = rig.connect_and_send(request.as_bytes());
        let up = origin.accept();
        let head = recv_head(&up);
        assert_contains(&head, &[&format!("traceparent: {sent}\r\n")]);
        up.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        assert!(recv_head(&client).starts_with("HTTP/1.1 200 "));
    }
    let span = collector.wait_span("/sampled");
    assert_eq!(span["traceId"], TRACE_ID, "{span}");
    assert_eq!(span["parentSpanId"], "00f067aa0ba902b7", "{span}");
    assert_eq!(
        span["flags"], 0x301,
        "sampled, and below a remote span: {span}"
    );
    assert_eq!(collector.spans().len(), 1, "{}", collector.log());
    for expected in [not_sampled, traceparent(&span)] {
        let check_request = service.next_request();
        let headers = check_request["headers"].as_array().expect("headers");
        assert!(
            headers.contains(&json!(["traceparent", expected])),
            "{check_request}"
        );
    }
    for (path, id) in [("/unsampled", None), ("/sampled", span["spanId"].as_str())] {
        let line = &rig.wait_audit_lines(path, 1)[0];
        assert_eq!(line["trace_id"], TRACE_ID, "{line}");
        assert_eq!(line["span_id"].as_str(), id, "{line}");
    }
}

/// A denial is not reported as an error, because denying is the proxy's task.
#[test]
fn spans_tell_denials_from_errors() {
    let stage = InterceptLab::new();
    let collector = start_collector(&stage);
    let rig = stage.start(&[
        OTLP,
        "--deny=a.test/admin",
        "--allow=a.test",
        "--allow=a.test:9",
    ]);
    rig.curl(&["https://a.test/admin"]);
    rig.curl(&["http://a.test:9/refused"]);
    rig.try_curl(&["https://b.test/"]);
    let denied = collector.wait_span("/admin");
    let expected = json!({
        "http.response.status_code": 403, "peername.decision": "denied", "peername.how": "list",
        "peername.code": "denied", "error.type": null,
    });
    assert_fields(&denied["attributes"], expected);
    assert_eq!(denied["status"], json!({}), "{denied}");
    let tunnel = collector.wait_span_with("server.address", "b.test");
    assert_eq!(tunnel["name"], "CONNECT", "{tunnel}");
    assert_fields(
        &tunnel["attributes"],
        json!({"peername.decision": "denied"}),
    );
    let failed = collector.wait_span("/refused");
    let expected = json!({"error.type": "connect_refused", "http.response.status_code": 502});
    assert_fields(&failed["attributes"], expected);
    assert_eq!(failed["status"]["code"], 2, "{failed}");
}

#[test]
fn spans_of_the_last_requests_are_sent_before_the_process_ends() {
    let stage = InterceptLab::new();
    let collector = start_collector(&stage);
    let mut rig = stage.start(&[OTLP]);
    rig.curl(&["http://a.test/echo"]);
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_success(Duration::from_secs(10));
    collector.wait_span("/echo");
}

#[test]
fn requests_go_on_without_a_collector_and_their_spans_are_counted() {
    let mut rig = InterceptRig::new(&[OTLP, ADMIN]);
    for _ in 0..3 {
        assert_eq!(rig.curl_status(&["http://a.test/echo"]), 200);
    }
    let remedy = "does --otlp name its receiver of OTLP over HTTP, and is it running?";
    rig.proxy.wait_logged_parts(&["Connection refused", remedy]);
    wait_metric(
        &rig.lab.balancer,
        &[],
        r#"peername_intercept_spans_total{outcome="dropped"} 3"#,
    );
    rig.curl(&["http://a.test/echo"]);
    rig.proxy.signal(Signal::TERM);
    assert!(rig.proxy.wait_exit(Duration::from_secs(10)).is_some());
}

#[test]
fn collector_is_reached_by_name_and_tls_with_the_roots_of_this_host() {
    let stage = InterceptLab::new();
    let [root, certificate, key] =
        ["root.pem", "origin.pem", "origin.key"].map(|name| stage.scratch.path_text(name));
    let addr = v4([10, 81, 0, 1], 4318);
    let host = &stage.lab.server;
    let collector = Collector::start_with_tls(host, &stage.scratch, addr, [&certificate, &key]);
    let roots = format!("SSL_CERT_FILE={root}");
    let through = [
        "env",
        &roots,
        "OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test",
    ];
    let rig = stage.start_through(&through, &["--otlp=https://a.test:4318/"]);
    rig.curl(&["http://a.test/echo"]);
    let span = collector.wait_span("/echo");
    assert_eq!(
        span["resource"]["deployment.environment.name"], "test",
        "{span}"
    );
}

#[test]
fn nothing_is_exported_without_the_option() {
    let stage = InterceptLab::new();
    let collector = start_collector(&stage);
    let variable = "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318";
    let mut rig = stage.start_through(&["env", variable], &[]);
    rig.curl(&["http://a.test/echo"]);
    let line = &rig.wait_audit_lines("/echo", 1)[0];
    assert_eq!(
        (line.get("trace_id"), line.get("span_id")),
        (None, None),
        "{line}"
    );
    rig.proxy.signal(Signal::TERM);
    assert!(rig.proxy.wait_exit(Duration::from_secs(10)).is_some());
    assert_eq!(collector.spans(), [] as [Value; 0]);
}

/// The collector listens on a loopback address outside of the jail, which the jailed program can't reach.
#[test]
fn spans_of_a_jailed_program_are_sent_from_outside() {
    let rig = JailRig::new();
    let collector = start_collector(&rig.stage);
    let script = "curl -sS http://a.test/echo; curl -s4 http://a.test:9999/; true";
    rig.succeeds(User::Nobody, &[OTLP], script);
    let span = collector.wait_span("/echo");
    assert_eq!(span["attributes"]["server.address"], "a.test", "{span}");
    // A port on which the jail does not listen.
    wait_until("the span of the refused port", || {
        let spans = collector.spans();
        spans
            .iter()
            .any(|span| span.to_string().contains("port_not_allowed"))
    });
}

fn start_collector(stage: &InterceptLab) -> Collector {
    Collector::start(&stage.lab.balancer, &stage.scratch, COLLECTOR)
}

/// The `traceparent` of requests that belong to this span.
fn traceparent(span: &Value) -> String {
    let [trace, id] = ["traceId", "spanId"].map(|name| span[name].as_str().expect("an id"));
    format!("00-{trace}-{id}-01")
}

const CHECK: SocketAddr = v4([127, 0, 0, 1], 9191);
const COLLECTOR: SocketAddr = v4([127, 0, 0, 1], 4318);
const OTLP: &str = "--otlp=http://127.0.0.1:4318";
const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
