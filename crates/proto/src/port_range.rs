//! Ranges of ports, as options and variables name them.

use core::ops::RangeInclusive;

/// Parses a port from 1, or a range of them: `443`, `8000-8010`, or `8000:8010` as in iptables. `None` for anything else, a
/// range that ends before it begins among it.
pub fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once(['-', ':']).unwrap_or((text, text));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (0 < first && first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_ranges() {
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
            ("80-", None),
            ("http", None),
            ("", None),
        ] {
            assert_eq!(port_range(text), ports, "{text}");
        }
    }
}
