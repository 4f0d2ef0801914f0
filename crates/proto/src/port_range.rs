//! Parsing of port ranges in options and environment variables.

use core::ops::RangeInclusive;

/// Parses a port or a range of ports: `443`, `8000-8010`, or `8000:8010` as in iptables. `None` for anything else, such as
/// port 0 or a range that ends before it begins.
pub fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once(['-', ':']).unwrap_or((text, text));
    let (first, last) = (port(first.trim())?, port(last.trim())?);
    (0 < first && first <= last).then_some(first..=last)
}

/// Parses digits alone: `parse` would take a sign.
fn port(text: &str) -> Option<u16> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_ascending_ranges_are_accepted() {
        for (text, ports) in [
            ("443", Some(443..=443)),
            ("8000-8010", Some(8000..=8010)),
            ("8000:8010", Some(8000..=8010)),
            ("8000 - 8010", Some(8000..=8010)),
            ("1-65535", Some(1..=65535)),
            ("8010-8000", None),
            ("0", None),
            ("0-80", None),
            ("65536", None),
            ("+443", None),
            ("8000-+8010", None),
            ("80-", None),
            ("http", None),
            ("", None),
        ] {
            assert_eq!(port_range(text), ports, "{text}");
        }
    }
}
