//! What can be wrong with an answer over gRPC.

use std::io::Write as _;

use crate::h2::{self, frame};
use crate::rig::{ask, client};

use super::{Fault, YES, all_denied, flood, frames, hold, say, serve, urls};

/// Or nothing below would show anything.
#[tokio::test]
async fn an_answer_in_order_is_a_yes() {
    let address = serve(|stream| {
        h2::begin(&stream);
        frames(&stream, &[frame(h2::DATA, 0, 1, YES), h2::trailers(b"0")]);
    });
    let verdict = ask(&client(&urls(address)[0])).await;
    assert!(verdict.decision.allows(), "{verdict:?}");
}

#[tokio::test]
async fn over_grpc() {
    let faults: &[Fault] = &[
        ("HTTP/1.1", |stream| {
            say(&stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }),
        ("greets and goes", |mut stream| {
            h2::settle(&stream);
            let _ = stream.write_all(&frame(
                h2::GOAWAY,
                0,
                0,
                &[0, 0, 0, 0, 0, 0, 0, 0, b'\xff', 0],
            ));
        }),
        ("a frame of nothing known", |stream| {
            frames(&stream, &[frame(h2::SETTINGS, 0, 7, &[1])]);
        }),
        ("a yes and no status", |stream| {
            h2::begin(&stream);
            frames(&stream, &[frame(h2::DATA, h2::END_STREAM, 1, YES)]);
        }),
        ("a yes and then nothing", |stream| {
            h2::begin(&stream);
            frames(&stream, &[frame(h2::DATA, 0, 1, YES)]);
            hold(&stream);
        }),
        ("a yes and another status", |stream| {
            h2::begin(&stream);
            frames(&stream, &[frame(h2::DATA, 0, 1, YES), h2::trailers(b"13")]);
        }),
        ("a yes and no number of a status", |stream| {
            h2::begin(&stream);
            frames(
                &stream,
                &[frame(h2::DATA, 0, 1, YES), h2::trailers(b"zero")],
            );
        }),
        ("a status and no answer", |stream| {
            h2::begin(&stream);
            frames(&stream, &[h2::trailers(b"0")]);
        }),
        ("an answer that is not of the protocol", |stream| {
            h2::begin(&stream);
            frames(
                &stream,
                &[
                    frame(h2::DATA, 0, 1, &[0, 0, 0, 0, 3, 0xff, 0xff, 0xff]),
                    h2::trailers(b"0"),
                ],
            );
        }),
        ("an answer of another encoding", |stream| {
            h2::begin(&stream);
            frames(
                &stream,
                &[
                    frame(h2::DATA, 0, 1, &[1, 0, 0, 0, 2, 0x0a, 0]),
                    h2::trailers(b"0"),
                ],
            );
        }),
        ("a reason that is not UTF-8", |stream| {
            h2::begin(&stream);
            let status = [0, 0, 0, 0, 5, 0x0a, 3, 0x12, 1, 0xff];
            frames(
                &stream,
                &[frame(h2::DATA, 0, 1, &status), h2::trailers(b"0")],
            );
        }),
        ("500", |stream| {
            h2::settle(&stream);
            let head = [0x8e];
            frames(
                &stream,
                &[frame(
                    h2::HEADERS,
                    h2::END_HEADERS | h2::END_STREAM,
                    1,
                    &head,
                )],
            );
        }),
        ("headers for ever", |mut stream| {
            h2::settle(&stream);
            let _ = stream.write_all(&frame(h2::HEADERS, 0, 1, &[h2::STATUS_200]));
            flood(
                &stream,
                &frame(h2::CONTINUATION, 0, 1, &h2::header(b"x-more", &[b'x'; 120])),
            );
        }),
    ];
    all_denied(faults, |url| url.starts_with("grpc")).await;
}
