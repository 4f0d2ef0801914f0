//! Faulty answers over HTTP/1.1.

use crate::broken::{Fault, answer_bytes, hold_open, write_endlessly, write_forever};
use crate::h2;
use crate::rig::{ask, client};

use super::{assert_all_denied, urls};

/// The control: a correct answer from the same fault server allows.
#[tokio::test]
async fn correct_answer_allows() {
    let correct = Fault::ok_with("none", br#"{"result":true}"#);
    for url in &urls(correct.serve())[1..] {
        assert!(ask(&client(url)).await.decision.allows(), "{url}");
    }
}

/// A server may close an idle connection at the moment at which it is reused.
#[tokio::test]
async fn query_on_a_closed_connection_is_retried_on_a_new_one() {
    let closing = Fault::new("closes when reused", |stream| {
        answer_bytes(
            &stream,
            b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"result\":true}",
        );
        h2::read_some(&stream);
    });
    for url in &urls(closing.serve())[1..] {
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
    let faults = [
        Fault::answers("500", b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"),
        Fault::answers("half a head", b"HTTP/1.1 200 OK\r\nContent-"),
        Fault::answers("half a body", HALF_A_BODY),
        Fault::new("half a body, and then nothing", |stream| {
            answer_bytes(&stream, HALF_A_BODY);
            hold_open(&stream);
        }),
        Fault::answers(
            "half a chunk",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n{",
        ),
        Fault::answers(
            "two lengths",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        ),
        Fault::answers(
            "a length that is no number",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0x0\r\n\r\n",
        ),
        Fault::new("100 Continue for ever", |stream| {
            write_forever(&stream, b"HTTP/1.1 100 Continue\r\n\r\n");
        }),
        Fault::new("a line for ever", |stream| {
            write_endlessly(&stream, b"HTTP/1.1 200 OK\r\nx: ", b"xxxxxxxxxxxxxxxx");
        }),
        Fault::new("headers for ever", |stream| {
            write_endlessly(&stream, b"HTTP/1.1 200 OK\r\n", b"x: y\r\n");
        }),
        Fault::answers(
            "a header of control characters",
            b"HTTP/1.1 200 OK\r\nx: \x00\x01\r\nContent-Length: 0\r\n\r\n",
        ),
        Fault::answers(
            "a header name not in ASCII",
            b"HTTP/1.1 200 OK\r\nx-\xff: 1\r\nContent-Length: 0\r\n\r\n",
        ),
        Fault::new("chunks for ever", |stream| {
            write_endlessly(&stream, CHUNKED, b"4\r\nabcd\r\n");
        }),
        Fault::new("trailers for ever", |stream| {
            write_endlessly(&stream, &[CHUNKED, b"0\r\n"].concat(), b"x: y\r\n");
        }),
    ];
    assert_all_denied(&faults, |url| !url.starts_with("grpc")).await;
}

#[tokio::test]
async fn faulty_opa_answers_are_denied() {
    let brackets = [&b"{\"result\":"[..], &[b'['; 60_000]].concat();
    let faults = [
        Fault::ok_with("nothing", b""),
        Fault::answers(
            "201",
            b"HTTP/1.1 201 OK\r\nContent-Length: 15\r\n\r\n{\"result\":true}",
        ),
        Fault::ok_with("not JSON", b"true"),
        Fault::ok_with("JSON and more", br#"{"result":true}{}"#),
        Fault::ok_with("two results", br#"{"result":false,"result":true}"#),
        Fault::ok_with("two allows", br#"{"result":{"allow":false,"allow":true }}"#),
        Fault::ok_with(
            "an allow with two spellings of its name",
            br#"{"result":{"allow":false,"\u0061llow":true }}"#,
        ),
        Fault::ok_with(
            "two values of a header",
            br#"{"result":{"allow":true,"headers":{"x":"1","x":"2"}}}"#,
        ),
        Fault::ok_with("invalid UTF-8", b"{\"result\":true,\"\xff\":1}"),
        Fault::ok_with("brackets", &brackets),
    ];
    assert_all_denied(&faults, |url| url.starts_with("opa")).await;
}

const HALF_A_BODY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"result\":true}";
const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
