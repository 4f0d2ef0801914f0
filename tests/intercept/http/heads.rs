//! Header lines and half-closes of HTTP/1, as real clients and origins send them.

use std::time::Duration;

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::conn::End;
use crate::harness::lab::assert_contains;
use crate::harness::rig::intercept::{InterceptRig, recv_head};

const ALLOW: &str = "--allow-destination=10.81.0.1:9001";

#[test]
fn response_may_have_hundreds_of_header_lines() {
    let rig = InterceptRig::new(&[ALLOW]);
    let _origin = rig.start_python_origin(MANY_HEADERS);
    for version in ["--http1.1", "--http2"] {
        let answer = rig
            .curl(&["-i", version, "https://a.test:9001/"])
            .to_lowercase();
        let lines = answer.lines().filter(|line| line.starts_with("x-many-"));
        assert_eq!(lines.count(), 240, "{version}");
    }
}

/// Some programs compare header names case-sensitively.
#[test]
fn names_of_headers_keep_their_case() {
    let rig = InterceptRig::new(&[ALLOW]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let request = b"GET http://a.test:9001/ HTTP/1.1\r\nHOST: a.test:9001\r\nX-gitHUB-api: 1\r\nSOAPAction: x\r\n\r\n";
    let client = rig.connect_and_send(request);
    let up = origin.accept();
    let head = recv_head(&up);
    assert_contains(
        &head,
        &[
            "HOST: a.test:9001\r\n",
            "X-gitHUB-api: 1\r\n",
            "SOAPAction: x\r\n",
        ],
    );
    up.send(
        b"HTTP/1.1 200 OK\r\nContent-length: 0\r\nETag: 1\r\nX-rateLIMIT: 2\r\nSet-cookie: a\r\nSET-COOKIE: b\r\n\r\n",
    );
    let head = recv_head(&client);
    assert_contains(
        &head,
        &[
            "Content-length: 0\r\n",
            "ETag: 1\r\n",
            "X-rateLIMIT: 2\r\n",
            "Set-cookie: a\r\n",
            "SET-COOKIE: b\r\n",
        ],
    );
}

/// `nc -N` and many scripts half-close. The response is larger than all buffers, and the client begins to read late.
#[test]
fn client_that_half_closes_gets_its_answer() {
    let rig = InterceptRig::new(&[ALLOW]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let request = b"GET http://a.test:9001/ HTTP/1.1\r\nHost: a.test:9001\r\n\r\n";
    let client = rig.connect_and_send(request);
    client.shutdown_write();
    let up = origin.accept();
    recv_head(&up);
    std::thread::sleep(Duration::from_millis(300));
    up.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8000000\r\n\r\n");
    std::thread::scope(|scope| {
        scope.spawn(|| up.send(&vec![b'x'; 8_000_000]));
        std::thread::sleep(Duration::from_millis(300));
        let (answer, end) = client.recv_to_end();
        assert!(answer.len() > 8_000_000, "{}", answer.len());
        assert_eq!(end, End::Fin);
    });
    assert_eq!(rig.wait_audit_lines("/", 1)[0]["end"], "complete");
}

/// An incomplete request gets no response.
#[test]
fn client_that_half_closes_in_its_body_is_cut() {
    let rig = InterceptRig::new(&[ALLOW]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let request =
        b"POST http://a.test:9001/ HTTP/1.1\r\nHost: a.test:9001\r\nContent-Length: 9\r\n\r\nhalf";
    let client = rig.connect_and_send(request);
    let up = origin.accept();
    recv_head(&up);
    client.shutdown_write();
    up.recv_to_end();
    assert!(!client.recv_text_to_end().contains("HTTP/1.1 200"));
}

const MANY_HEADERS: &str = include_str!("heads/many_headers.py");
