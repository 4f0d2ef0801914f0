//! HTTP/1 requests, as hyper and the framing check see them: no panic; the same result however they are split into
//! reads; and both agree on the length of a served request.
#![no_main]

use http::Version;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use libfuzzer_sys::fuzz_target;
use peername_intercept::fuzzing::{ParsedRequest, framing, requests};

fuzz_target!(|bytes: &[u8]| {
    let whole = framing(bytes, bytes.len().max(1));
    for step in [1, 5] {
        assert_eq!(framing(bytes, step), whole, "by {step}");
    }
    let (verdicts, _) = whole;
    let refused = verdicts.iter().position(|served| !served);
    assert!(
        refused.is_none_or(|at| at + 1 == verdicts.len()),
        "a verdict follows a refusal"
    );
    let all = requests(bytes, bytes.len().max(1));
    let in_pieces = requests(bytes, 3);
    let served: Vec<_> = all.iter().filter(|taken| taken.served).collect();
    assert!(
        all.iter().take(served.len()).all(|taken| taken.served),
        "a request is served after a refusal"
    );
    assert!(served.len() <= verdicts.iter().filter(|served| **served).count());
    for taken in &served {
        check_framing(taken);
    }
    // Both stop at the same place; hyper detects it earlier with larger reads.
    let in_pieces = in_pieces.iter().filter(|taken| taken.served);
    let same = |(one, other): (&&ParsedRequest, &ParsedRequest)| {
        one.head.method == other.head.method
            && one.head.uri == other.head.uri
            && one.head.headers == other.head.headers
            && (one.body.is_none() || one.body == other.body)
    };
    assert!(served.iter().zip(in_pieces).all(same), "by 3");
});

/// Checks the framing of a served request: the ambiguities that RFC 9112 permits.
fn check_framing(ParsedRequest { head, body, .. }: &ParsedRequest) {
    let all = |name| -> Vec<_> { head.headers.get_all(name).iter().collect() };
    let (lengths, codings) = (all(CONTENT_LENGTH), all(TRANSFER_ENCODING));
    let whole = |len: usize| body.as_ref().is_none_or(|body| body.len() == len);
    match (&lengths[..], &codings[..]) {
        ([], []) => assert!(whole(0)),
        ([length], []) => {
            let digits = length.to_str().expect("ASCII");
            assert!(
                digits.bytes().all(|byte| byte.is_ascii_digit()),
                "{digits:?}"
            );
            assert!(whole(digits.parse().expect("a number")));
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
