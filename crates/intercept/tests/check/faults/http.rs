//! Faulty answers over HTTP/1.1.

use crate::broken::{Fault, answer_bytes, hold_open, serve_fault, write_endlessly, write_forever};
use crate::h2;
use crate::rig::{ask, client};
use crate::service::any_loopback;

use super::{assert_all_denied, urls};

/// The control: a correct answer from the same fault server allows.
#[tokio::test]
async fn correct_answer_allows() {
    let address = serve_fault(any_loopback(), |stream| {
        answer_bytes(
            &stream,
            b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"result\":true}",
        );
    });
    for url in &urls(address)[1..] {
        assert!(ask(&client(url)).await.decision.allows(), "{url}");
    }
}

/// A server may close an idle connection at the moment at which it is reused.
#[tokio::test]
async fn query_on_a_closed_connection_is_retried_on_a_new_one() {
    let address = serve_fault(any_loopback(), |stream| {
        answer_bytes(
            &stream,
            b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"result\":true}",
        );
        h2::read_some(&stream);
    });
    for url in &urls(address)[1..] {
        let client = client(url);
        for _ in 0..5 {
            let verdict = ask(&client).await;
            assert!(verdict.decision.allows(), "{url}: {verdict:?}");
        }
    }
}

/// An allow with a framing fault does not allow.
#[tokio::test]
async fn faulty_http_answers_are_denied() {
    let faults: &[Fault] = &[
        ("500", |stream| {
            answer_bytes(&stream, b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n");
        }),
        ("half a head", |stream| {
            answer_bytes(&stream, b"HTTP/1.1 200 OK\r\nContent-");
        }),
        ("half a body", |stream| {
            answer_bytes(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"result\":true}",
            );
        }),
        ("half a body, and then nothing", |stream| {
            answer_bytes(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"result\":true}",
            );
            hold_open(&stream);
        }),
        ("half a chunk", |stream| {
            answer_bytes(
                &stream,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n{",
            );
        }),
        ("two lengths", |stream| {
            answer_bytes(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
            );
        }),
        ("a length that is no number", |stream| {
            answer_bytes(&stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0x0\r\n\r\n");
        }),
        ("100 Continue for ever", |stream| {
            write_forever(&stream, b"HTTP/1.1 100 Continue\r\n\r\n");
        }),
        ("a line for ever", |stream| {
            write_endlessly(&stream, b"HTTP/1.1 200 OK\r\nx: ", b"xxxxxxxxxxxxxxxx");
        }),
        ("headers for ever", |stream| {
            write_endlessly(&stream, b"HTTP/1.1 200 OK\r\n", b"x: y\r\n");
        }),
        ("a header of control characters", |stream| {
            answer_bytes(
                &stream,
                b"HTTP/1.1 200 OK\r\nx: \x00\x01\r\nContent-Length: 0\r\n\r\n",
            );
        }),
        ("chunks for ever", |stream| {
            write_endlessly(
                &stream,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                b"4\r\nabcd\r\n",
            );
        }),
        ("trailers for ever", |stream| {
            write_endlessly(
                &stream,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
                b"x: y\r\n",
            );
        }),
    ];
    assert_all_denied(faults, |url| !url.starts_with("grpc")).await;
}

#[tokio::test]
async fn faulty_opa_answers_are_denied() {
    let faults: &[Fault] = &[
        ("nothing", |stream| {
            answer_bytes(&stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }),
        ("201", |stream| {
            answer_bytes(
                &stream,
                b"HTTP/1.1 201 OK\r\nContent-Length: 15\r\n\r\n{\"result\":true}",
            );
        }),
        ("not JSON", |stream| {
            answer_bytes(&stream, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue");
        }),
        ("JSON and more", |stream| {
            answer_bytes(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{\"result\":true}{}",
            );
        }),
        ("two results", |stream| {
            answer_bytes(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{\"result\":false,\"result\":true}",
            );
        }),
        ("two allows", |stream| {
            answer_bytes(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{\"result\":{\"allow\":false,\"allow\":true }}",
            );
        }),
        ("an allow with two spellings of its name", |stream| {
            answer_bytes(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 45\r\n\r\n{\"result\":{\"allow\":false,\"\\u0061llow\":true }}",
            );
        }),
        ("two values of a header", |stream| {
            answer_bytes(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 53\r\n\r\n{\"result\":{\"allow\":true,\"headers\":{\"x\":\"1\",\"x\":\"2\"}}}",
            );
        }),
        ("invalid UTF-8", |stream| {
            answer_bytes(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{\"result\":true,\"\xff\":1}",
            );
        }),
        ("brackets", |stream| {
            let body = "[".repeat(60_000);
            answer_bytes(
                &stream,
                format!("HTTP/1.1 200 OK\r\nContent-Length: 60010\r\n\r\n{{\"result\":{body}")
                    .as_bytes(),
            );
        }),
    ];
    assert_all_denied(faults, |url| url.starts_with("opa")).await;
}
