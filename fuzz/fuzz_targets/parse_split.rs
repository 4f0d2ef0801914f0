//! Incremental parsing: the result for each prefix agrees with the result for the whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use peername_proto::{Carrier, Parsed, parse};

fuzz_target!(|bytes: &[u8]| {
    let whole = parse(bytes, Carrier::Stream);
    for end in 0..bytes.len() {
        match parse(&bytes[..end], Carrier::Stream) {
            Ok(Parsed::NeedMore(need)) => {
                assert!(need > end);
                if let Ok(Parsed::Complete(header)) = whole {
                    assert!(end < header.len && need <= header.len);
                }
            }
            early => assert_eq!(early, whole, "at {end}"),
        }
    }
    read_incrementally(bytes);
});

/// A reader that reads only as many bytes as requested gets the same result, without reading beyond the header.
fn read_incrementally(bytes: &[u8]) {
    let mut have = 0;
    while let Ok(Parsed::NeedMore(need)) = parse(&bytes[..have], Carrier::Stream) {
        if need > bytes.len() {
            return;
        }
        have = need;
    }
    let stepwise = parse(&bytes[..have], Carrier::Stream);
    assert_eq!(stepwise, parse(bytes, Carrier::Stream));
    if let Ok(Parsed::Complete(header)) = stepwise {
        assert_eq!(header.len, have);
    }
}
