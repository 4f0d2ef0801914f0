//! The first bytes of a connection: no panic; the same result however they are split into reads; and a verdict is final.
#![no_main]

use libfuzzer_sys::fuzz_target;
use peername_intercept::fuzzing::{classify_opening, parse_client_hello};

fuzz_target!(|bytes: &[u8]| {
    let whole = classify_opening(bytes);
    let mut verdict = None;
    for end in 0..=bytes.len().min(MAX_PREFIX) {
        let next = classify_opening(&bytes[..end]);
        assert!(
            verdict.is_none() || next == verdict,
            "{verdict:?} became {next:?} at {end}"
        );
        verdict = next;
    }
    assert!(verdict.is_none() || verdict == whole);
    let parsed = parse_client_hello(bytes, bytes.len().max(1));
    for step in [1, 7, 1000] {
        assert_eq!(parse_client_hello(bytes, step), parsed, "by {step}");
    }
    if let Some(name) = parsed.and_then(|parsed| parsed.sni) {
        assert!(name.as_ip().is_none());
        assert!(
            !name
                .to_string()
                .contains(|c: char| c.is_control() || c.is_ascii_uppercase())
        );
    }
});

/// More bytes than the decision between TLS and HTTP needs.
const MAX_PREFIX: usize = 300;
