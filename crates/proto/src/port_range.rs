//! Parsing of port ranges in options and environment variables.

use core::ops::RangeInclusive;

/// Parses a port or a range of ports: `443`, `8000-8010`, or `8000:8010` as in iptables. `None` for anything else, such as
/// port 0 or a range that ends before it begins.
pub fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = bounds(text)?;
    (first <= last).then_some(first..=last)
}

/// Whether the text is a range of ports that ends before it begins: `8010-8000`.
pub fn is_reversed_port_range(text: &str) -> bool {
    bounds(text).is_some_and(|(first, last)| first > last)
}

/// Parses the two ports of a range, or one port as both.
fn bounds(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once(['-', ':']).unwrap_or((text, text));
    let (first, last) = (port(first.trim())?, port(last.trim())?);
    (0 < first && 0 < last).then_some((first, last))
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
            assert_eq!(is_reversed_port_range(text), text == "8010-8000", "{text}");
        }
    }
}
