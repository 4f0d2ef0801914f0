//! Requests on their way to hyper: no panic; the same however they are cut into reads; and what is served has one
//! end, about which hyper and what watches it agree.
#![no_main]

use http::Version;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use libfuzzer_sys::fuzz_target;
use peername_intercept::fuzzing::{Taken, framing, requests};

fuzz_target!(|bytes: &[u8]| {
    let whole = framing(bytes, bytes.len().max(1));
    for step in [1, 5] {
        assert_eq!(framing(bytes, step), whole, "by {step}");
    }
    let (verdicts, _) = whole;
    let refused = verdicts.iter().position(|served| !served);
    assert!(
        refused.is_none_or(|at| at + 1 == verdicts.len()),
        "nothing follows a refusal"
    );
    let all = requests(bytes, bytes.len().max(1));
    let in_pieces = requests(bytes, 3);
    let served: Vec<_> = all.iter().filter(|taken| taken.served).collect();
    assert!(
        all.iter().take(served.len()).all(|taken| taken.served),
        "nor is it served"
    );
    assert!(served.len() <= verdicts.iter().filter(|served| **served).count());
    for taken in &served {
        check(taken);
    }
    // Broken off at the same place, of which hyper hears sooner the more comes at once.
    let in_pieces = in_pieces.iter().filter(|taken| taken.served);
    let same = |(one, other): (&&Taken, &Taken)| {
        one.head.method == other.head.method
            && one.head.uri == other.head.uri
            && one.head.headers == other.head.headers
            && (one.body.is_none() || one.body == other.body)
    };
    assert!(served.iter().zip(in_pieces).all(same), "by 3");
});

/// Everything that the rules of RFC 9112 leave to opinion.
fn check(Taken { head, body, .. }: &Taken) {
    let all = |name| -> Vec<_> { head.headers.get_all(name).iter().collect() };
    let (lengths, codings) = (all(CONTENT_LENGTH), all(TRANSFER_ENCODING));
    let whole = |len: usize| body.as_ref().is_none_or(|body| body.len() == len);
    match (&lengths[..], &codings[..]) {
        ([], []) => assert!(whole(0)),
        ([length], []) => {
            let digits = length.to_str().expect("ASCII");
            assert!(
                digits.bytes().all(|octet| octet.is_ascii_digit()),
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
