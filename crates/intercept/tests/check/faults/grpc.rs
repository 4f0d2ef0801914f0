//! Faulty answers over gRPC.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use peername_intercept::authz::{AuthzError, DecidedBy};

use crate::broken::{
    CHECK_RESPONSE_OK, Fault, answer_bytes, hold_open, serve_fault, write_forever, write_frames,
};
use crate::h2::{self, frame};
use crate::rig::{ask, check_with_default_timeout, client};
use crate::service::any_loopback;

use super::{assert_all_denied, urls};

/// The control: a correct answer from the same fault server allows.
#[tokio::test]
async fn correct_answer_allows() {
    let address = serve_fault(any_loopback(), |stream| {
        h2::begin_response(&stream);
        write_frames(
            &stream,
            &[frame(h2::DATA, 0, 1, CHECK_RESPONSE_OK), h2::trailers(b"0")],
        );
    });
    let verdict = ask(&client(&urls(address)[0])).await;
    assert!(verdict.decision.allows(), "{verdict:?}");
}

/// A peer that vanished without closing the connection looks like a slow one.
#[tokio::test]
async fn silent_connection_is_not_reused_after_a_timeout() {
    static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    let address = serve_fault(any_loopback(), |stream| {
        match CONNECTIONS.fetch_add(1, Relaxed) {
            0 => hold_open(&stream),
            _ => {
                h2::begin_response(&stream);
                write_frames(
                    &stream,
                    &[frame(h2::DATA, 0, 1, CHECK_RESPONSE_OK), h2::trailers(b"0")],
                );
            }
        }
    });
    let client = check_with_default_timeout(&urls(address)[0], |_| ()).client();
    let verdict = ask(&client).await;
    assert!(
        matches!(
            verdict.decided_by,
            DecidedBy::Failure(AuthzError::Timeout(_))
        ),
        "{verdict:?}"
    );
    let verdict = ask(&client).await;
    assert!(verdict.decision.allows(), "{verdict:?}");
    assert_eq!(CONNECTIONS.load(Relaxed), 2);
}

#[tokio::test]
async fn faulty_grpc_answers_are_denied() {
    let faults: &[Fault] = &[
        ("HTTP/1.1", |stream| {
            answer_bytes(&stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }),
        ("greets and goes", |mut stream| {
            h2::exchange_settings(&stream);
            let _ = stream.write_all(&frame(
                h2::GOAWAY,
                0,
                0,
                &[0, 0, 0, 0, 0, 0, 0, 0, b'\xff', 0],
            ));
        }),
        ("a frame of nothing known", |stream| {
            write_frames(&stream, &[frame(h2::SETTINGS, 0, 7, &[1])]);
        }),
        ("a yes and no status", |stream| {
            h2::begin_response(&stream);
            write_frames(
                &stream,
                &[frame(h2::DATA, h2::END_STREAM, 1, CHECK_RESPONSE_OK)],
            );
        }),
        ("a yes and then nothing", |stream| {
            h2::begin_response(&stream);
            write_frames(&stream, &[frame(h2::DATA, 0, 1, CHECK_RESPONSE_OK)]);
            hold_open(&stream);
        }),
        ("a yes and another status", |stream| {
            h2::begin_response(&stream);
            write_frames(
                &stream,
                &[
                    frame(h2::DATA, 0, 1, CHECK_RESPONSE_OK),
                    h2::trailers(b"13"),
                ],
            );
        }),
        ("a yes and no number of a status", |stream| {
            h2::begin_response(&stream);
            write_frames(
                &stream,
                &[
                    frame(h2::DATA, 0, 1, CHECK_RESPONSE_OK),
                    h2::trailers(b"zero"),
                ],
            );
        }),
        ("a status and no answer", |stream| {
            h2::begin_response(&stream);
            write_frames(&stream, &[h2::trailers(b"0")]);
        }),
        ("an answer that is not of the protocol", |stream| {
            h2::begin_response(&stream);
            write_frames(
                &stream,
                &[
                    frame(h2::DATA, 0, 1, &[0, 0, 0, 0, 3, 0xff, 0xff, 0xff]),
                    h2::trailers(b"0"),
                ],
            );
        }),
        ("an answer of another encoding", |stream| {
            h2::begin_response(&stream);
            write_frames(
                &stream,
                &[
                    frame(h2::DATA, 0, 1, &[1, 0, 0, 0, 2, 0x0a, 0]),
                    h2::trailers(b"0"),
                ],
            );
        }),
        ("two answers", |stream| {
            h2::begin_response(&stream);
            let two = CHECK_RESPONSE_OK.repeat(2);
            write_frames(&stream, &[frame(h2::DATA, 0, 1, &two), h2::trailers(b"0")]);
        }),
        ("two statuses in an answer", |stream| {
            h2::begin_response(&stream);
            // The codes 7 (PERMISSION_DENIED) and 0.
            let both = [0, 0, 0, 0, 8, 0x0a, 2, 8, 7, 0x0a, 2, 8, 0];
            write_frames(&stream, &[frame(h2::DATA, 0, 1, &both), h2::trailers(b"0")]);
        }),
        ("two codes in a status", |stream| {
            h2::begin_response(&stream);
            let both = [0, 0, 0, 0, 6, 0x0a, 4, 8, 7, 8, 0];
            write_frames(&stream, &[frame(h2::DATA, 0, 1, &both), h2::trailers(b"0")]);
        }),
        ("a denied response and an OK", |stream| {
            h2::begin_response(&stream);
            let both = [0, 0, 0, 0, 4, 0x12, 0, 0x1a, 0];
            write_frames(&stream, &[frame(h2::DATA, 0, 1, &both), h2::trailers(b"0")]);
        }),
        ("two OKs", |stream| {
            h2::begin_response(&stream);
            let both = [0, 0, 0, 0, 4, 0x1a, 0, 0x1a, 0];
            write_frames(&stream, &[frame(h2::DATA, 0, 1, &both), h2::trailers(b"0")]);
        }),
        (
            "a status before the answer and another behind it",
            |mut stream| {
                h2::exchange_settings(&stream);
                let head = [
                    &[h2::STATUS_200][..],
                    &h2::header_field(b"content-type", b"application/grpc"),
                    &h2::header_field(b"grpc-status", b"0"),
                ]
                .concat();
                let _ = stream.write_all(&frame(h2::HEADERS, h2::END_HEADERS, 1, &head));
                write_frames(
                    &stream,
                    &[frame(h2::DATA, 0, 1, CHECK_RESPONSE_OK), h2::trailers(b"7")],
                );
            },
        ),
        ("two statuses behind the answer", |stream| {
            h2::begin_response(&stream);
            let statuses = [b"0", b"7"].map(|code| h2::header_field(b"grpc-status", code));
            let trailers = frame(
                h2::HEADERS,
                h2::END_HEADERS | h2::END_STREAM,
                1,
                &statuses.concat(),
            );
            write_frames(
                &stream,
                &[frame(h2::DATA, 0, 1, CHECK_RESPONSE_OK), trailers],
            );
        }),
        ("a reason that is not UTF-8", |stream| {
            h2::begin_response(&stream);
            let status = [0, 0, 0, 0, 5, 0x0a, 3, 0x12, 1, 0xff];
            write_frames(
                &stream,
                &[frame(h2::DATA, 0, 1, &status), h2::trailers(b"0")],
            );
        }),
        ("500", |stream| {
            h2::exchange_settings(&stream);
            let head = [0x8e];
            write_frames(
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
            h2::exchange_settings(&stream);
            let _ = stream.write_all(&frame(h2::HEADERS, 0, 1, &[h2::STATUS_200]));
            write_forever(
                &stream,
                &frame(
                    h2::CONTINUATION,
                    0,
                    1,
                    &h2::header_field(b"x-more", &[b'x'; 120]),
                ),
            );
        }),
    ];
    assert_all_denied(faults, |url| url.starts_with("grpc")).await;
}
