//! Queries to the name server of a jail: no panic; a response has the query's id and fits every datagram.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use peername_intercept::listener::jail::names::answer::answer;
use peername_intercept::listener::jail::names::range::NameRanges;
use peername_intercept::listener::jail::names::table::SyntheticNames;

static NAMES: LazyLock<SyntheticNames> =
    LazyLock::new(|| SyntheticNames::new(NameRanges::default(), true));

fuzz_target!(|query: &[u8]| {
    if let Some(response) = answer(query, &NAMES) {
        assert!(response.len() <= MAX_RESPONSE);
        assert_eq!(response.get(..2), query.get(..2));
        // The QR bit of a response.
        assert!(response[2] & 0x80 != 0);
    }
});

/// Bytes that fit a datagram on every path: the least MTU of IPv6, less the headers.
const MAX_RESPONSE: usize = 1232;
