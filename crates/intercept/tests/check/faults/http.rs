//! What can be wrong with an answer in HTTP/1.1.

use crate::broken::{Fault, endless, flood, hold, say, serve};
use crate::h2;
use crate::rig::{ask, client};
use crate::service::any;

use super::{all_denied, urls};

/// Or nothing below would show anything.
#[tokio::test]
async fn an_answer_in_order_is_a_yes() {
    let address = serve(any(), |stream| {
        say(
            &stream,
            b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"result\":true}",
        );
    });
    for url in &urls(address)[1..] {
        assert!(ask(&client(url)).await.decision.allows(), "{url}");
    }
}

/// A server may close a connection that it kept open in the moment that it is used again.
#[tokio::test]
async fn a_connection_that_closes_under_a_question_is_replaced() {
    let address = serve(any(), |stream| {
        say(
            &stream,
            b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"result\":true}",
        );
        h2::read(&stream);
    });
    for url in &urls(address)[1..] {
        let client = client(url);
        for _ in 0..5 {
            let verdict = ask(&client).await;
            assert!(verdict.decision.allows(), "{url}: {verdict:?}");
        }
    }
}

/// Of HTTP/1.1; a yes with something wrong about it is none.
#[tokio::test]
async fn over_http() {
    let faults: &[Fault] = &[
        ("500", |stream| {
            say(&stream, b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n");
        }),
        ("half a head", |stream| {
            say(&stream, b"HTTP/1.1 200 OK\r\nContent-");
        }),
        ("half a body", |stream| {
            say(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"result\":true}",
            );
        }),
        ("half a body, and then nothing", |stream| {
            say(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"result\":true}",
            );
            hold(&stream);
        }),
        ("half a chunk", |stream| {
            say(
                &stream,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n{",
            );
        }),
        ("two lengths", |stream| {
            say(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
            );
        }),
        ("a length that is no number", |stream| {
            say(&stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0x0\r\n\r\n");
        }),
        ("100 Continue for ever", |stream| {
            flood(&stream, b"HTTP/1.1 100 Continue\r\n\r\n");
        }),
        ("a line for ever", |stream| {
            endless(&stream, b"HTTP/1.1 200 OK\r\nx: ", b"xxxxxxxxxxxxxxxx");
        }),
        ("headers for ever", |stream| {
            endless(&stream, b"HTTP/1.1 200 OK\r\n", b"x: y\r\n");
        }),
        ("a header of control characters", |stream| {
            say(
                &stream,
                b"HTTP/1.1 200 OK\r\nx: \x00\x01\r\nContent-Length: 0\r\n\r\n",
            );
        }),
        ("chunks for ever", |stream| {
            endless(
                &stream,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                b"4\r\nabcd\r\n",
            );
        }),
        ("trailers for ever", |stream| {
            endless(
                &stream,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
                b"x: y\r\n",
            );
        }),
    ];
    all_denied(faults, |url| !url.starts_with("grpc")).await;
}

#[tokio::test]
async fn over_http_to_opa() {
    let faults: &[Fault] = &[
        ("nothing", |stream| {
            say(&stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }),
        ("201", |stream| {
            say(
                &stream,
                b"HTTP/1.1 201 OK\r\nContent-Length: 15\r\n\r\n{\"result\":true}",
            );
        }),
        ("not JSON", |stream| {
            say(&stream, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue");
        }),
        ("JSON and more", |stream| {
            say(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{\"result\":true}{}",
            );
        }),
        ("two results", |stream| {
            say(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{\"result\":false,\"result\":true}",
            );
        }),
        ("invalid UTF-8", |stream| {
            say(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n{\"result\":true,\"\xff\":1}",
            );
        }),
        ("brackets", |stream| {
            let body = "[".repeat(60_000);
            say(
                &stream,
                format!("HTTP/1.1 200 OK\r\nContent-Length: 60010\r\n\r\n{{\"result\":{body}")
                    .as_bytes(),
            );
        }),
    ];
    all_denied(faults, |url| url.starts_with("opa")).await;
}
