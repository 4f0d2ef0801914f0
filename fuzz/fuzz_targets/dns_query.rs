//! Queries to the name server of a jail: no panic; a response has the query's id, fits every datagram, and names no address but
//! synthetic ones and loopback.
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
        assert!(response.len() <= 1232);
        assert_eq!(response.get(..2), query.get(..2));
        // QR: it is a response.
        assert!(response[2] & 0x80 != 0);
    }
});
