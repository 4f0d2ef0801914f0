//! Responses of ambiguous length: the client gets an error, and the connection to the origin is not reused.

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::lab::assert_contains;
use crate::harness::rig::intercept::{InterceptRig, recv_head};

const REQUEST: &[u8] = b"GET http://a.test:9001/ HTTP/1.1\r\nHost: a.test:9001\r\n\r\n";
const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood";

#[test]
fn ambiguous_response_is_not_passed_on() {
    let rig = InterceptRig::new(&[]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let too_many_lines = "X: y\r\n".repeat(251);
    for headers in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: -4\r\n",
        "Content-Length: 4\r\n X: folded\r\n",
        "X : y\r\nContent-Length: 4\r\n",
        "X: \0\r\nContent-Length: 4\r\n",
        &too_many_lines,
    ] {
        let shown = &headers[..headers.len().min(60)];
        let client = rig.connect_and_send(REQUEST);
        let up = origin.accept();
        recv_head(&up);
        let evil = format!("HTTP/1.1 200 OK\r\n{headers}\r\n4\r\nevil\r\n0\r\n\r\n");
        up.send(evil.as_bytes());
        let answer = client.recv_text_until(|text| text.contains("request_id"));
        assert!(answer.starts_with("HTTP/1.1 502 "), "{shown:?}: {answer}");
        assert_contains(&answer, &["upstream_bad_answer"]);
        assert!(!answer.contains("evil"), "{shown:?}: {answer}");
        // The client's connection is as good as before; the origin's is not reused.
        client.send(REQUEST);
        let next = origin.accept();
        recv_head(&next);
        next.send(GOOD);
        let answer = client.recv_text_until(|text| text.ends_with("good"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{shown:?}: {answer}");
        next.shutdown_write();
    }
}

/// A response without a request belongs to no client.
#[test]
fn bytes_after_a_response_are_not_the_next_response() {
    let rig = InterceptRig::new(&[]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let evil = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    for first in [
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\nX: good\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 49\r\nX: good\r\n\r\n",
    ] {
        let client = rig.connect_and_send(REQUEST);
        let up = origin.accept();
        recv_head(&up);
        up.send(format!("{first}{evil}").as_bytes());
        let answer =
            client.recv_text_until(|text| text.contains("good") && text.contains("\r\n\r\n"));
        assert!(!answer.contains("evil"), "{first:?}: {answer}");
        client.send(REQUEST);
        let next = origin.accept();
        recv_head(&next);
        next.send(GOOD);
        let answer = client.recv_text_until(|text| text.ends_with("good"));
        assert!(!answer.contains("evil"), "{first:?}: {answer}");
        next.shutdown_write();
    }
}
