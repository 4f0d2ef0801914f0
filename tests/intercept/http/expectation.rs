//! Requests that are answered before their body has come: 100 (Continue), and early final responses.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{assert_contains, assert_fields, stdout_text};
use crate::harness::rig::intercept::{InterceptRig, recv_head};
use crate::intercept::upstream::reuse::start_streams;

const WITH_LENGTH: &[u8] =
    b"POST http://a.test:9001/x HTTP/1.1\r\nHost: a.test:9001\r\nContent-Length: 4\r\n\
    Expect: 100-continue\r\n\r\n";
const CHUNKED: &[u8] =
    b"POST http://a.test:9001/x HTTP/1.1\r\nHost: a.test:9001\r\nTransfer-Encoding: chunked\r\n\
    Expect: 100-continue\r\n\r\n";

const UPLOAD: &[u8] =
    b"POST http://a.test:9001/x HTTP/1.1\r\nHost: a.test:9001\r\nContent-Length: 4\r\n\r\nb";
const GET: &[u8] = b"GET http://a.test:9001/other HTTP/1.1\r\nHost: a.test:9001\r\n\r\n";

/// The origin decides whether the client sends its body.
#[test]
fn expectation_is_met_by_the_origin() {
    let (_rig, origin, client) = start(WITH_LENGTH);
    let up = origin.accept();
    let head = recv_head(&up).to_lowercase();
    assert_contains(&head, &["\r\nexpect: 100-continue\r\n"]);
    assert!(
        !client.is_answered_after(Duration::from_millis(300)),
        "too early"
    );
    up.send(b"HTTP/1.1 100 Continue\r\n\r\n");
    assert!(recv_head(&client).starts_with("HTTP/1.1 100 "));
    client.assert_reaches(&up, b"body");
    up.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(recv_head(&client).starts_with("HTTP/1.1 200 "));
}

#[test]
fn refused_expectation_gets_the_origins_answer_alone() {
    for head in [WITH_LENGTH, CHUNKED] {
        let (rig, origin, client) = start(head);
        let up = origin.accept();
        recv_head(&up);
        up.send(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno");
        let answer = client.recv_text_to_end().to_lowercase();
        assert!(answer.starts_with("http/1.1 401 "), "{answer}");
        assert_contains(&answer, &["connection: close"]);
        // The body never came, so the origin gets nothing else, not even a last chunk, which would end the body.
        assert_eq!(up.recv_to_end().0, b"");
        assert_eq!(rig.wait_audit_lines("/x", 1)[0]["end"], "complete");
    }
}

/// Servers of HTTP/1.0, and others that don't know the expectation, wait for the body.
#[test]
fn expectation_that_the_origin_ignores_is_met_after_a_second() {
    let (_rig, origin, client) = start(WITH_LENGTH);
    let begun = Instant::now();
    let up = origin.accept();
    recv_head(&up);
    assert!(recv_head(&client).starts_with("HTTP/1.1 100 "));
    assert!(
        begun.elapsed() > Duration::from_millis(700),
        "{:?}",
        begun.elapsed()
    );
    client.assert_reaches(&up, b"body");
}

/// The origin responds to the head, and closes the connection while the body is on its way.
#[test]
fn early_final_response_reaches_the_client() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9002"]);
    let _origin = rig.start_python_origin(EARLY_ORIGIN);
    let data = format!("@{}", rig.scratch.path_text("large"));
    for (version, scheme, port) in [
        ("--http1.1", "http", 9002),
        ("--http1.1", "https", 9001),
        ("--http2", "https", 9001),
    ] {
        let mut failed = Vec::new();
        thread::scope(|scope| {
            let runs: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        upload(&rig, version, &format!("{scheme}://a.test:{port}"), &data)
                    })
                })
                .collect();
            for run in runs {
                failed.extend(run.join().expect("its statuses"));
            }
        });
        assert!(
            failed.is_empty(),
            "{version} {scheme}: {} of 100: {failed:?}",
            failed.len()
        );
    }
}

/// Uploads 25 times; returns a line for each response whose status curl did not get.
fn upload(rig: &InterceptRig, version: &str, origin: &str, data: &str) -> Vec<String> {
    [307, 401, 413]
        .iter()
        .cycle()
        .take(25)
        .filter_map(|status| {
            let url = format!("{origin}/{status}");
            let expected = status.to_string();
            let common = [version, "-H", "Expect:", "--data-binary", data];
            let printed = ["-o", "/dev/null", "-w", "%{http_code}", &url];
            let got = stdout_text(&rig.try_curl(&[common, printed].concat()));
            (got != expected).then(|| format!("{got} for {expected}"))
        })
        .collect()
}

/// The origin answers the head and keeps the connection: it gets the rest of the body, and no other request before that.
#[test]
fn early_answer_does_not_end_the_upload() {
    let rig = InterceptRig::new(&["--workers=1", "--allow-destination=10.81.0.1:9001"]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let client = rig.connect_and_send(UPLOAD);
    let up = origin.accept();
    answer_early(&up, &client, "text/plain");
    let other = rig.connect_and_send(GET);
    let other_up = origin.accept();
    assert!(recv_head(&other_up).starts_with("GET /other "));
    other_up.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert!(recv_head(&other).starts_with("HTTP/1.1 200 "));
    rig.wait_audit_lines("/other", 1);
    assert!(!rig.proxy.log().contains("\"/x\""), "{}", rig.proxy.log());
    client.send(b"ody");
    assert_eq!(up.recv(3), b"ody");
    let line = &rig.wait_audit_lines("/x", 1)[0];
    assert_fields(line, json!({"end": "complete", "bytes_to_upstream": 4}));
    // The connection is free now.
    other.send(GET);
    assert!(recv_head(&up).starts_with("GET /other "));
}

/// Nothing more comes of a body whose request was answered, also by a stream of messages, which has ended.
#[test]
fn stalled_upload_is_aborted_after_an_early_answer() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001", "--idle-timeout=1s"]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    for (lines_before, content_type) in ["text/plain", "text/event-stream"].into_iter().enumerate()
    {
        let client = rig.connect_and_send(UPLOAD);
        let up = origin.accept();
        answer_early(&up, &client, content_type);
        up.wait_closed();
        let line = &rig.wait_audit_lines("/x", lines_before + 1)[lines_before];
        assert_fields(line, json!({"end": "idle", "bytes_to_upstream": 1}));
    }
}

/// The client has the whole response, and closes in the middle of its body.
#[test]
fn upload_that_its_client_cuts_after_an_early_answer_is_not_complete() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let client = rig.connect_and_send(UPLOAD);
    let up = origin.accept();
    answer_early(&up, &client, "text/plain");
    drop(client);
    up.wait_closed();
    let line = &rig.wait_audit_lines("/x", 1)[0];
    assert_fields(line, json!({"end": "cut", "bytes_to_upstream": 1}));
}

/// A server may stop an upload so (RFC 9113, section 8.1), but a client does not end its body. The origins speak HTTP/1.1 and
/// HTTP/2.
#[test]
fn upload_that_its_client_resets_without_an_error_is_not_complete() {
    for origin in [
        include_str!("../upstream/early_reader.py"),
        include_str!("../upstream/early_http2.py"),
    ] {
        let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
        let _origin = rig.start_python_origin(origin);
        let _client = start_streams(&rig, "a.test:9001", &["cut", "/x"]);
        let line = &rig.wait_audit_lines("/x", 1)[0];
        assert_fields(
            line,
            json!({"status": 200, "end": "cut", "bytes_to_upstream": 1}),
        );
    }
}

/// The client sends a byte at a time, and for longer than the limit.
#[test]
fn slow_upload_is_not_aborted_after_an_early_answer() {
    let options = ["--allow-destination=10.81.0.1:9001", "--idle-timeout=2s"];
    let rig = InterceptRig::new(&options);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let client = rig.connect_and_send(UPLOAD);
    let up = origin.accept();
    answer_early(&up, &client, "text/plain");
    for byte in [b"o", b"d", b"y"] {
        thread::sleep(Duration::from_secs(1));
        client.assert_reaches(&up, byte);
    }
    let line = &rig.wait_audit_lines("/x", 1)[0];
    assert_fields(line, json!({"end": "complete", "bytes_to_upstream": 4}));
}

/// Receives the head of [`UPLOAD`] and the first byte of its body, and answers them.
fn answer_early(up: &Conn, client: &Conn, content_type: &str) {
    let received = up.recv_text_until(|text| text.ends_with("\r\n\r\nb"));
    assert!(received.starts_with("POST /x "), "{received}");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: 2");
    up.send(format!("{head}\r\n\r\nok").as_bytes());
    let answer = client.recv_text_until(|text| text.ends_with("\r\n\r\nok"));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

fn start(head: &[u8]) -> (InterceptRig, Backend, Conn) {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let client = rig.connect_and_send(head);
    (rig, origin, client)
}

const EARLY_ORIGIN: &str = include_str!("expectation/early_origin.py");
