//! Truncated and endless responses: the client gets an error, and no truncated body looks complete.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::conn::End;
use crate::harness::lab::{Process, assert_fields, stdout_text};
use crate::harness::rig::intercept::{InterceptRig, recv_head};

/// The client speaks HTTP/1.1, and then HTTP/2.
#[test]
fn truncated_body_never_looks_complete() {
    let rig = InterceptRig::new(&[]);
    let _origin = start_origin(&rig);
    for version in ["--http1.1", "--http2"] {
        for (port, path) in [
            (9001, "length"),
            (9001, "length-and-reset"),
            (9001, "inside-a-chunk"),
            (9001, "between-chunks"),
            (9001, "inside-the-last-chunk"),
            (9003, "short-of-its-length"),
            (9003, "reset"),
            (9003, "reset-without-error"),
            (9003, "closed"),
            (9003, "gone-away"),
            (9003, "gone-away-unprocessed"),
        ] {
            // The proxy speaks to the origin the same protocol as the client to the proxy.
            if port == 9003 && version == "--http1.1" {
                continue;
            }
            let case = format!("{version} {path}");
            let url = format!("https://a.test:{port}");
            let cut = rig.try_curl(&[version, &format!("{url}/{path}")]);
            assert!(
                matches!(cut.status.code(), Some(18 | 56 | 92)),
                "{case}: {cut:?}"
            );
            // The line of the client of HTTP/1.1 comes first.
            let before = usize::from(version == "--http2" && port != 9003);
            let line = &rig.wait_audit_lines(&format!("/{path}"), before + 1)[before];
            assert_eq!(line["status"], 200, "{case}: {line}");
            assert_ne!(line["end"], "complete", "{case}: {line}");
            for good in ["whole", "whole-until-close"] {
                let whole = rig.curl(&[version, &format!("{url}/{good}")]);
                assert_eq!(whole, "0123456789", "{case}: {good}");
            }
        }
    }
    // One for each of the truncated responses: 5 over HTTP/1.1 and 11 over HTTP/2.
    for line in rig.wait_audit_lines("/whole-until-close", 16) {
        assert_eq!(line["close_notify"], Value::Null, "{line}");
    }
}

/// Many servers end TLS without close_notify, and most clients take that for the end of a response that has no length. The
/// audit line says that close_notify was missing, so any party may have closed the connection.
#[test]
fn body_without_a_length_may_end_without_close_notify() {
    let rig = InterceptRig::new(&[]);
    let _origin = start_origin(&rig);
    for version in ["--http1.1", "--http2"] {
        let body = rig.curl(&[version, "https://a.test:9001/until-close"]);
        assert_eq!(body, "0123456789", "{version}");
    }
    for line in rig.wait_audit_lines("/until-close", 2) {
        assert_eq!(line["end"], "complete", "{line}");
        assert_eq!(line["close_notify"], false, "{line}");
    }
}

/// A client that got nothing might send its request again, which the origin has answered.
#[test]
fn head_is_passed_on_if_its_body_breaks_off_at_once() {
    let rig = InterceptRig::new(&["--workers=1"]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let request = b"GET http://a.test:9001/head HTTP/1.1\r\nHost: a.test:9001\r\n\r\n";
    let client = rig.connect_and_send(request);
    let up = origin.accept();
    recv_head(&up);
    // The proxy finds both at once: the head, and the end of the connection.
    rig.proxy.signal(Signal::STOP);
    up.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n");
    drop(up);
    rig.proxy.signal(Signal::CONT);
    let answer = client.recv_text_to_end();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer:?}");
    let line = &rig.wait_audit_lines("/head", 1)[0];
    assert_fields(line, json!({"status": 200, "end": "cut_by_origin"}));
}

/// Only the end of the connection ends a response of HTTP/1.0. After a FIN, a truncated one would look complete.
#[test]
fn truncated_body_resets_a_client_of_http_1_0() {
    let rig = InterceptRig::new(&[]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let request = b"GET http://a.test:9001/x HTTP/1.0\r\nHost: a.test:9001\r\n\r\n";
    let respond = |rest: &[u8], is_reset: bool| {
        let client = rig.connect_and_send(request);
        let up = origin.accept();
        up.recv_text_until(|text| text.ends_with("\r\n\r\n"));
        up.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n");
        let head = client.recv_text_until(|text| text.ends_with("0123"));
        assert!(!head.to_lowercase().contains("content-length"), "{head}");
        up.send(rest);
        if is_reset {
            up.reset();
        } else {
            drop(up);
        }
        client.recv_to_end()
    };
    assert_eq!(
        respond(b"3\r\n456\r\n0\r\n\r\n", false),
        (b"456".to_vec(), End::Fin)
    );
    for (rest, is_reset) in [(&b""[..], false), (b"8\r\n4", false), (b"", true)] {
        let (_, end) = respond(rest, is_reset);
        assert_eq!(end, End::Reset, "{rest:?} {is_reset}");
    }
    let lines = rig.wait_audit_lines("/x", 4);
    let cut = lines.iter().filter(|line| line["end"] == "cut_by_origin");
    assert_eq!(cut.count(), 3, "{lines:?}");
}

/// Interim responses (RFC 9110, section 15.2) extend no deadline. Other requests are served meanwhile by the
/// same thread, and what is kept is bounded.
#[test]
fn endless_interim_responses_time_out() {
    let rig = InterceptRig::new(&["--workers=1", "--answer-timeout=5s"]);
    let _origin = start_origin(&rig);
    for (version, port, max_growth) in [
        ("--http1.1", 9001, BUFFERS_KIB),
        ("--http2", 9001, BUFFERS_KIB),
        ("--http2", 9003, ONE_POLL_KIB),
    ] {
        let url = format!("https://a.test:{port}");
        // So that the memory of both connections is allocated already.
        assert_eq!(rig.curl(&[version, &format!("{url}/whole")]), "0123456789");
        let before = rig.proxy.resident_kib();
        let url = format!("{url}/interim");
        let ((status, took), (served, peak)) = std::thread::scope(|scope| {
            let flood = scope.spawn(|| {
                let begun = Instant::now();
                let args = ["-o", "/dev/null", "-w", "%{http_code}"];
                let output = rig.try_curl(&[&args[..], &[version, &url]].concat());
                (stdout_text(&output), begun.elapsed())
            });
            let mut served = 0;
            let mut peak = 0;
            while !flood.is_finished() {
                assert_eq!(rig.curl_status(&["--http1.1", "https://a.test/echo"]), 200);
                served += 1;
                peak = peak.max(rig.proxy.resident_kib());
            }
            (flood.join().expect("its end"), (served, peak))
        });
        println!("{version} {port}: {status}, {took:?}; {served} served, {before} to {peak} KiB");
        assert_eq!(status, "504", "{version} {port}");
        assert!(took < Duration::from_secs(12), "{took:?}");
        assert!(served > 1, "{version} {port}: {served} served in {took:?}");
        assert!(
            peak < before + max_growth,
            "{version} {port}: {before} to {peak} KiB"
        );
    }
}

/// Starts an origin with TLS, at 9001 for HTTP/1.1 and at 9003 for HTTP/2.
fn start_origin(rig: &InterceptRig) -> Process {
    rig.scratch.write("frames.py", include_str!("frames.py"));
    let script = rig
        .scratch
        .write("truncation.py", include_str!("truncation.py"));
    let [pem, key] = ["origin.pem", "origin.key"].map(|name| rig.scratch.path_text(name));
    let process = Process::start(
        &rig.lab.server,
        "/usr/bin/python3",
        &["-u", &script, &pem, &key],
    );
    process.wait_listening(&[9001, 9003].map(|port| v4([10, 81, 0, 1], port)))
}

/// Many times what a connection has in its buffers.
const BUFFERS_KIB: usize = 16 << 10;
/// h2 keeps interim responses, with twenty times their bytes, until the task that waits for the response is polled. What is
/// read in one poll is bounded by tokio's budget.
const ONE_POLL_KIB: usize = 128 << 10;
