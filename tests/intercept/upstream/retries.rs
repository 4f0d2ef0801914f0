//! Retries: which requests are sent again, and how often. The origin's own log counts them.

use rustix::process::Signal;
use serde_json::json;

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::lab::{Process, assert_contains, assert_fields, wait_for};
use crate::harness::peername::words;
use crate::harness::rig::intercept::{InterceptRig, PROXY_ADDR, recv_head};

/// An origin that refuses every stream gets each request twice at most.
#[test]
fn refused_stream_is_retried_once() {
    let (rig, origin) = start();
    assert_eq!(rig.curl(&[&url("/")]), "GET 0");
    let problem = rig.curl_problem(&[&url("/never")]);
    assert_eq!(problem["code"], "upstream_unprocessed", "{problem}");
    let line = &rig.wait_audit_lines("/never", 1)[0];
    assert_eq!(line["retried"], true, "{line}");
    assert_eq!(requests_seen(&rig, &origin, "/never").len(), 2);
    let metrics = rig.read_metrics();
    assert_contains(&metrics, &["peername_intercept_upstream_retries_total 1"]);
}

/// REFUSED_STREAM, and GOAWAY with a last stream identifier below the request's, say that the request was not processed
/// (RFC 9113, section 8.7). So even a POST is sent again, with its body, on another connection.
#[test]
fn unprocessed_request_is_retried_with_any_method() {
    let (rig, origin) = start();
    for path in ["/fresh", "/goaway"] {
        assert_eq!(rig.curl(&[&url("/")]), "GET 0");
        let data = "x".repeat(1000);
        assert_eq!(
            rig.curl(&["--data", &data, &url(path)]),
            "POST 1000",
            "{path}"
        );
        let requests = requests_seen(&rig, &origin, path);
        assert_eq!(requests.len(), 2, "{path}: {requests:?}");
        assert_ne!(requests[0], requests[1], "{path}: another connection");
    }
}

/// A reset for another reason may come after the request was processed.
#[test]
fn stream_that_failed_is_not_retried() {
    let (rig, origin) = start();
    assert_eq!(rig.curl(&[&url("/")]), "GET 0");
    assert_eq!(
        rig.curl_problem(&[&url("/internal")])["code"],
        "upstream_reset"
    );
    assert_eq!(requests_seen(&rig, &origin, "/internal").len(), 1);
}

/// An origin may want HTTP/1.1 for some resources (RFC 9113, section 7), and the proxy remembers that.
#[test]
fn http_1_1_required_is_obeyed_and_remembered() {
    let (rig, origin) = start();
    for _ in 0..3 {
        assert_eq!(rig.curl(&[&url("/http1")]), "GET 0");
    }
    let requests = requests_seen(&rig, &origin, "/http1");
    let protocols: Vec<&str> = requests
        .iter()
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    assert_eq!(protocols, ["h2", "http/1.1", "http/1.1", "http/1.1"]);
}

/// An origin may close an idle connection at the very moment it is reused. A request without side effects is
/// retried; a POST is left to its client to retry.
#[test]
fn request_on_a_closed_idle_connection_is_retried() {
    // Each worker would have an idle connection of its own.
    let rig = InterceptRig::new(&["--workers=1", "--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(include_str!("closing_origin.py"));
    let url = "https://a.test:9001/";
    for _ in 0..3 {
        assert_eq!(rig.curl(&["--http1.1", url]), "ok");
    }
    let post = ["--http1.1", "--data", "x", url];
    assert_eq!(rig.curl_problem(&post)["code"], "upstream_closed");
    assert_eq!(rig.curl(&post), "ok");
}

/// The origin closes an idle connection, and the next request comes just before the proxy sees that. It is sent again, with its
/// whole body.
#[test]
fn request_that_was_not_sent_keeps_its_body() {
    for form in ["chunked", "length"] {
        let rig = InterceptRig::new(&words("--workers=1 --allow-destination=10.81.0.1:9001"));
        let origin = rig.start_python_origin(include_str!("closing_idle_origin.py"));
        let script = rig
            .scratch
            .write("client.py", include_str!("put_client.py"));
        let go = rig.scratch.path_text("go");
        let ca = rig.scratch.path_text("ca.pem");
        let args = ["-u", &script, &PROXY_ADDR.to_string(), &ca, form, &go];
        let client = Process::start(&rig.lab.client, "/usr/bin/python3", &args);
        client.wait_printed("idle");
        // The proxy finds both at once: the request first, then the end of the connection.
        rig.proxy.signal(Signal::STOP);
        std::fs::write(&go, "").expect("write(2)");
        client.wait_printed("sent");
        rig.scratch.write("close", "");
        origin.wait_printed("closed");
        rig.proxy.signal(Signal::CONT);
        client.wait_printed("answer: 200 the body");
    }
}

/// The client leaves while the second attempt awaits its response. The body was sent twice, and counts once.
#[test]
fn retry_that_its_client_aborts_is_logged_and_counted() {
    let rig = InterceptRig::new(&words(
        "--workers=1 --allow-destination=10.81.0.1:9001 --admin=127.0.0.1:9300",
    ));
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let get = b"GET http://a.test:9001/ HTTP/1.1\r\nHost: a.test:9001\r\n\r\n";
    let client = rig.connect_and_send(get);
    let first = origin.accept();
    recv_head(&first);
    first.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    recv_head(&client);
    let body = "x".repeat(100);
    let head = "PUT http://a.test:9001/put HTTP/1.1\r\nHost: a.test:9001\r\nContent-Length: 100";
    client.send(format!("{head}\r\n\r\n{body}").as_bytes());
    first.recv_text_until(|text| text.ends_with(&body));
    drop(first);
    let second = origin.accept();
    second.recv_text_until(|text| text.ends_with(&body));
    client.reset();
    let line = &rig.wait_audit_lines("/put", 1)[0];
    let expected = json!({
        "upstream": "10.81.0.1:9001", "retried": true, "bytes_to_upstream": 100, "end": "cut",
    });
    assert_fields(line, expected);
    let metrics = rig.read_metrics();
    assert_contains(&metrics, &["peername_intercept_upstream_retries_total 1"]);
}

/// When an origin refuses everything, retries don't double its load: they have a budget of a fifth of its requests, and a
/// hundred.
#[test]
fn retries_have_a_budget() {
    let (rig, origin) = start();
    let urls = url("/never?[1-400]");
    let line = format!("--parallel --parallel-max 20 -o /dev/null {urls}");
    let args = words(&line);
    rig.curl(&args);
    let sent = requests_seen(&rig, &origin, "/never").len();
    assert!(
        (501..=600).contains(&sent),
        "{sent} requests at the origin for 400"
    );
}

fn start() -> (InterceptRig, Process) {
    let rig = InterceptRig::new(&words(
        "--workers=1 --allow-destination=10.81.0.1:9001 --admin=127.0.0.1:9300",
    ));
    let origin = rig.start_python_origin(include_str!("retrying_origin.py"));
    (rig, origin)
}

fn url(path: &str) -> String {
    format!("https://a.test:9001{path}")
}

/// The connection, protocol and method of each request of this path that the origin has received. A last request marks the
/// end of what the origin logs.
fn requests_seen(rig: &InterceptRig, origin: &Process, path: &str) -> Vec<String> {
    rig.curl(&[&url("/end")]);
    let log = wait_for("the origin's log", || {
        let log = origin.log();
        log.trim_end().ends_with(" /end").then_some(log)
    });
    log.lines()
        .filter_map(|line| line.rsplit_once(' '))
        .filter(|(_, target)| target.split('?').next() == Some(path))
        .map(|(head, _)| head.to_owned())
        .collect()
}
