use super::*;
use crate::{Carrier, parse};

/// The bytes that `complete_line` tries. Those that end a line soonest come first.
const ENDINGS: &[u8] = b"\n\r :.1CPKNOW46TUXRY";

#[test]
fn first_wrong_byte_is_reported() {
    use V1Field::{Destination, DestinationPort, LineEnd, Protocol, Source, SourcePort};
    for (line, field, offset, reason) in [
        ("PROXY tcp4", Protocol, 6, "v1_protocol"),
        ("PROXY TCP5", Protocol, 9, "v1_protocol"),
        ("PROXY TCP4  ", Source, 11, "v1_source"),
        ("PROXY TCP4 256.", Source, 13, "v1_source"),
        ("PROXY TCP4 01.", Source, 12, "v1_source"),
        ("PROXY TCP4 1.2.3.4.", Source, 18, "v1_source"),
        ("PROXY TCP6 12345", Source, 15, "v1_source"),
        ("PROXY TCP6 1::2::", Source, 16, "v1_source"),
        ("PROXY TCP6 1:2:3:4:5:6:7:8:", Source, 26, "v1_source"),
        ("PROXY TCP6 1:2:3:4:5:6:7::8", Source, 26, "v1_source"),
        ("PROXY TCP6 1:2:3:4:5:6:7:1.", Source, 26, "v1_source"),
        ("PROXY TCP6 1::2:3:4:5:6:1.", Source, 25, "v1_source"),
        ("PROXY TCP6 ::a.", Source, 14, "v1_source"),
        ("PROXY TCP6 ::1a.", Source, 15, "v1_source"),
        ("PROXY TCP6 ::01.", Source, 15, "v1_source"),
        ("PROXY TCP6 ::1.01", Source, 16, "v1_source"),
        ("PROXY TCP6 ::256.", Source, 16, "v1_source"),
        ("PROXY TCP6 1:2 ", Source, 14, "v1_source"),
        ("PROXY TCP4 1.1.1.1 2.2:", Destination, 22, "v1_destination"),
        (
            "PROXY TCP4 1.1.1.1 2.2.2.2 65536",
            SourcePort,
            31,
            "v1_source_port",
        ),
        (
            "PROXY TCP4 1.1.1.1 2.2.2.2 1 2  ",
            DestinationPort,
            31,
            "v1_destination_port",
        ),
        (
            "PROXY TCP4 1.1.1.1 2.2.2.2 1 2\rX",
            LineEnd,
            31,
            "v1_line_end",
        ),
        (
            "PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n",
            LineEnd,
            30,
            "v1_line_end",
        ),
        ("PROXY UNKNOWN x\n", LineEnd, 15, "v1_line_end"),
        ("PROXY UNKNOWNX", Protocol, 13, "v1_protocol"),
    ] {
        let invalid = Invalid::V1Line { field, offset };
        assert_eq!(
            parse(line.as_bytes(), Carrier::Stream),
            Err(invalid),
            "{line:?}"
        );
        assert_eq!(invalid.reason(), reason);
        let before = &line.as_bytes()[..offset];
        assert!(
            matches!(parse(before, Carrier::Stream), Ok(Parsed::NeedMore(_))),
            "{line:?}"
        );
    }
}

/// `NeedMore` is returned only where more bytes can help: from every such prefix a valid line can be reached.
#[test]
fn need_more_can_always_become_a_valid_line() {
    let lines: [&[u8]; 6] = [
        b"PROXY TCP4 192.0.2.255 1.20.0.3 65535 0\r\n",
        b"PROXY TCP6 2001:db8::a:1 1:2:3:4:5:6:7:8 1 443\r\n",
        b"PROXY TCP6 ::ffff:192.0.2.1 1:2:3:4:5:6:10.0.0.1 1 2\r\n",
        b"PROXY TCP6 1:2:3:4:5:6:7:: ::2:3:4:5:6:7:8 1 2\r\n",
        b"PROXY UNKNOWN anything at all\r\n",
        b"PROXY UNKNOWN\r\n",
    ];
    let mut completed = 0;
    for line in lines {
        for end in 0..line.len() {
            for byte in 0..=u8::MAX {
                let mut bytes = [&line[..end], &[byte]].concat();
                completed += usize::from(complete_line(&mut bytes));
            }
        }
    }
    assert!(completed > 1000, "{completed}");
}

/// Completes a line byte by byte. False if the line is invalid or complete already.
fn complete_line(bytes: &mut Vec<u8>) -> bool {
    let Ok(Parsed::NeedMore(least)) = super::parse(bytes) else {
        return false;
    };
    while let Ok(Parsed::NeedMore(_)) = super::parse(bytes) {
        let next = ENDINGS
            .iter()
            .find(|&&byte| super::parse(&[bytes.as_slice(), &[byte]].concat()).is_ok());
        bytes.push(*next.unwrap_or_else(|| panic!("stuck: {}", bytes.escape_ascii())));
    }
    assert!(least <= bytes.len(), "{least}: {}", bytes.escape_ascii());
    true
}

#[test]
fn line_longer_than_107_bytes_is_refused() {
    let line = |ignored: usize| format!("PROXY UNKNOWN {}\r\n", "z".repeat(ignored)).into_bytes();
    let longest = line(91);
    assert_eq!(longest.len(), MAX_LEN);
    assert!(
        matches!(super::parse(&longest), Ok(Parsed::Complete(header)) if header.len == MAX_LEN)
    );
    assert_eq!(super::parse(&longest[..105]), Ok(Parsed::NeedMore(107)));
    assert_eq!(super::parse(&line(92)), Err(Invalid::V1TooLong));
    assert_eq!(super::parse(&line(92)[..106]), Err(Invalid::V1TooLong));
    // Bytes behind the limit change nothing, not even the error.
    for byte in 0..=u8::MAX {
        let tail = [&line(92)[..106], &[byte]].concat();
        assert_eq!(super::parse(&tail), Err(Invalid::V1TooLong));
    }
}

#[test]
fn address_is_parsed_without_a_line() {
    for text in [
        "0.0.0.0",
        "255.255.255.255",
        "::",
        "::1",
        "2001:db8::7",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255",
    ] {
        assert_eq!(address(text.as_bytes()), text.parse().ok(), "{text}");
    }
    for text in [
        "",
        " ",
        "1.2.3",
        "1.2.3.4.5",
        "1.2.3.4 ",
        " 1.2.3.4",
        "1.2.3.4 5",
        "::1 ::2",
        "[::1]",
        "1.2.3.4\0",
    ] {
        assert_eq!(address(text.as_bytes()), None, "{text:?}");
    }
    assert_eq!(address(&[b'1'; 46]), None);
}

/// A deviation from the grammar is accepted if it is unambiguous, and named.
#[test]
fn deviations_are_named() {
    for (line, expected) in [
        (
            "PROXY TCP6 2001:db8::42 10.0.0.2 1 2\r\n",
            "source is IPv6, destination IPv4 in a TCP6 header",
        ),
        (
            "PROXY TCP4 2001:db8::42 2001:db8::1 1 2\r\n",
            "source is IPv6, destination IPv6 in a TCP4 header",
        ),
        (
            "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
            "source is IPv4, destination IPv4 in a TCP6 header",
        ),
        (
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
            "a space before the CRLF of a version 1 line",
        ),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 0 2\r\n", "source port 0"),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 1 0\r\n", ""),
        ("PROXY UNKNOWN \r\n", ""),
    ] {
        let Ok(Parsed::Complete(header)) = parse(line.as_bytes(), Carrier::Stream) else {
            panic!("{line:?}")
        };
        assert_eq!(header.len, line.len());
        let deviation = header.deviation().map(|deviation| deviation.to_string());
        assert_eq!(deviation.unwrap_or_default(), expected, "{line:?}");
    }
}
