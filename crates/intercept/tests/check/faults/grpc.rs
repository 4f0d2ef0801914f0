//! Faulty answers over gRPC.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::broken::{Fault, hold_open, write_forever, write_frames};
use crate::h2::{self, frame};
use crate::rig::{ask, check_with_default_timeout, client, failure};

use super::{assert_all_denied, urls};

/// The control: a correct answer from the same fault server allows.
#[tokio::test]
async fn correct_answer_allows() {
    let correct = Fault::grpc_data("none", CHECK_RESPONSE_OK, b"0");
    let verdict = ask(&client(&urls(correct.serve())[0])).await;
    assert!(verdict.decision.allows(), "{verdict:?}");
}

/// A peer that vanished without closing the connection looks like a slow one.
#[tokio::test]
async fn silent_connection_is_not_reused_after_a_timeout() {
    static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    let silent_once = Fault::new("silent once", |stream| {
        match CONNECTIONS.fetch_add(1, Relaxed) {
            0 => hold_open(&stream),
            _ => {
                h2::begin_response(&stream);
                let answer = frame(h2::DATA, 0, 1, CHECK_RESPONSE_OK);
                write_frames(&stream, &[answer, h2::trailers(b"0")]);
            }
        }
    });
    let client = check_with_default_timeout(&urls(silent_once.serve())[0], |_| ()).client();
    let verdict = ask(&client).await;
    assert_eq!(failure(&verdict), Some("check_timeout"), "{verdict:?}");
    let verdict = ask(&client).await;
    assert!(verdict.decision.allows(), "{verdict:?}");
    assert_eq!(CONNECTIONS.load(Relaxed), 2);
}

#[tokio::test]
async fn faulty_grpc_answers_are_denied() {
    let faults = [
        Fault::ok_with("HTTP/1.1", b""),
        Fault::new("GOAWAY instead of an answer", |mut stream| {
            h2::accept_request(&stream);
            let payload = [0, 0, 0, 0, 0, 0, 0, 0, b'\xff', 0];
            let _ = stream.write_all(&frame(h2::GOAWAY, 0, 0, &payload));
        }),
        Fault::new("a malformed SETTINGS frame", |stream| {
            write_frames(&stream, &[frame(h2::SETTINGS, 0, 7, &[1])]);
        }),
        Fault::new("an allowing message without a grpc-status", |stream| {
            h2::begin_response(&stream);
            let answer = frame(h2::DATA, h2::END_STREAM, 1, CHECK_RESPONSE_OK);
            write_frames(&stream, &[answer]);
        }),
        Fault::new("an allowing message, and then silence", |stream| {
            h2::begin_response(&stream);
            write_frames(&stream, &[frame(h2::DATA, 0, 1, CHECK_RESPONSE_OK)]);
            hold_open(&stream);
        }),
        Fault::grpc_data(
            "an allowing message with grpc-status 13",
            CHECK_RESPONSE_OK,
            b"13",
        ),
        Fault::grpc_data(
            "an allowing message with a grpc-status in letters",
            CHECK_RESPONSE_OK,
            b"zero",
        ),
        Fault::new("a grpc-status without a message", |stream| {
            h2::begin_response(&stream);
            write_frames(&stream, &[h2::trailers(b"0")]);
        }),
        Fault::grpc_answer(
            "a message that is not of the protocol",
            &[0xff, 0xff, 0xff],
            b"0",
        ),
        Fault::grpc_data("a compressed message", &[1, 0, 0, 0, 2, 0x0a, 0], b"0"),
        Fault::grpc_data("two messages", &CHECK_RESPONSE_OK.repeat(2), b"0"),
        // The codes 7 (PERMISSION_DENIED) and 0.
        Fault::grpc_answer("two statuses", &[0x0a, 2, 8, 7, 0x0a, 2, 8, 0], b"0"),
        Fault::grpc_answer("two codes in a status", &[0x0a, 4, 8, 7, 8, 0], b"0"),
        Fault::grpc_answer("a denied response and an OK", &[0x12, 0, 0x1a, 0], b"0"),
        Fault::grpc_answer("two OKs", &[0x1a, 0, 0x1a, 0], b"0"),
        Fault::new(
            "a grpc-status before and after the message",
            |mut stream| {
                h2::accept_request(&stream);
                let head = [
                    &[h2::STATUS_200][..],
                    &h2::header_field(b"content-type", b"application/grpc"),
                    &h2::header_field(b"grpc-status", b"0"),
                ]
                .concat();
                let _ = stream.write_all(&frame(h2::HEADERS, h2::END_HEADERS, 1, &head));
                let answer = frame(h2::DATA, 0, 1, CHECK_RESPONSE_OK);
                write_frames(&stream, &[answer, h2::trailers(b"7")]);
            },
        ),
        Fault::new("two grpc-statuses after the message", |stream| {
            h2::begin_response(&stream);
            let statuses = [b"0", b"7"].map(|code| h2::header_field(b"grpc-status", code));
            let trailers = frame(h2::HEADERS, END, 1, &statuses.concat());
            let answer = frame(h2::DATA, 0, 1, CHECK_RESPONSE_OK);
            write_frames(&stream, &[answer, trailers]);
        }),
        Fault::grpc_answer("a reason not in UTF-8", &[0x0a, 3, 0x12, 1, 0xff], b"0"),
        Fault::new("500", |stream| {
            h2::accept_request(&stream);
            write_frames(&stream, &[frame(h2::HEADERS, END, 1, &[STATUS_500])]);
        }),
        Fault::new("headers for ever", |mut stream| {
            h2::accept_request(&stream);
            let _ = stream.write_all(&frame(h2::HEADERS, 0, 1, &[h2::STATUS_200]));
            let header = h2::header_field(b"x-more", &[b'x'; 120]);
            write_forever(&stream, &frame(h2::CONTINUATION, 0, 1, &header));
        }),
    ];
    assert_all_denied(&faults, |url| url.starts_with("grpc")).await;
}

/// A CheckResponse with an empty status, which allows; with its prefix.
const CHECK_RESPONSE_OK: &[u8] = &[0, 0, 0, 0, 2, 0x0a, 0];
/// The end of the headers and of the response.
const END: u8 = h2::END_HEADERS | h2::END_STREAM;
/// Entry 14 of HPACK's static table.
const STATUS_500: u8 = 0x8e;
