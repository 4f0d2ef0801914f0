//! HTTP/1 requests, as hyper and the framing check parse them: no panic; the framing check has the same result however the
//! bytes are split into reads; and a served request has one unambiguous length.
#![no_main]

use http::Version;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use libfuzzer_sys::fuzz_target;
use peername_intercept::fuzzing::{ParsedRequest, check_framing, parse_requests};

fuzz_target!(|bytes: &[u8]| {
    let whole = check_framing(bytes, bytes.len().max(1));
    for step in [1, 5] {
        assert_eq!(check_framing(bytes, step), whole, "by {step}");
    }
    let (verdicts, _) = whole;
    let refused = verdicts.iter().position(|served| !served);
    assert!(
        refused.is_none_or(|at| at + 1 == verdicts.len()),
        "a verdict follows a refusal"
    );
    let parsed = parse_requests(bytes, bytes.len().max(1));
    let parsed_in_pieces = parse_requests(bytes, 3);
    let served: Vec<_> = parsed.iter().filter(|request| request.served).collect();
    assert!(
        parsed
            .iter()
            .take(served.len())
            .all(|request| request.served),
        "a request is served after a refusal"
    );
    assert!(served.len() <= verdicts.iter().filter(|served| **served).count());
    for request in &served {
        assert_valid_framing(request);
    }
    // With larger reads hyper may detect an error earlier, and serve fewer requests.
    let served_in_pieces = parsed_in_pieces.iter().filter(|request| request.served);
    for (whole, in_pieces) in served.iter().zip(served_in_pieces) {
        check_same_request(whole, in_pieces);
    }
});

fn check_same_request(whole: &ParsedRequest, in_pieces: &ParsedRequest) {
    assert_eq!(whole.head.method, in_pieces.head.method);
    assert_eq!(whole.head.uri, in_pieces.head.uri);
    assert_eq!(whole.head.headers, in_pieces.head.headers);
    assert!(whole.body.is_none() || whole.body == in_pieces.body);
}

/// Asserts that a served request has none of the ambiguities of framing that RFC 9112 permits.
fn assert_valid_framing(ParsedRequest { head, body, .. }: &ParsedRequest) {
    let lengths: Vec<_> = head.headers.get_all(CONTENT_LENGTH).iter().collect();
    let codings: Vec<_> = head.headers.get_all(TRANSFER_ENCODING).iter().collect();
    // An incomplete body has no length to compare.
    let has_length = |len: usize| body.as_ref().is_none_or(|body| body.len() == len);
    match (&lengths[..], &codings[..]) {
        ([], []) => assert!(has_length(0)),
        ([length], []) => {
            let digits = length.to_str().expect("ASCII");
            assert!(
                digits.bytes().all(|byte| byte.is_ascii_digit()),
                "{digits:?}"
            );
            assert!(has_length(digits.parse().expect("a number")));
        }
        ([], [coding]) => {
            assert!(
                coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
                "{coding:?}"
            );
            assert_ne!(head.version, Version::HTTP_10);
        }
        both => panic!("framed by {both:?}"),
    }
}
