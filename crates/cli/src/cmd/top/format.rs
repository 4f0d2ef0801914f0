//! Numbers and texts for the terminal.

use std::time::Duration;

/// Formats a number with three digits and a prefix: `1234567.0` as `1.23 M`.
pub(super) fn amount(value: f64) -> String {
    let mut scaled = value;
    let mut prefixes = ["", " k", " M", " G", " T"].into_iter();
    let mut prefix = prefixes.next().unwrap_or("");
    while scaled >= 1000.0
        && let Some(next) = prefixes.next()
    {
        scaled /= 1000.0;
        prefix = next;
    }
    let is_whole = prefix.is_empty() && scaled.fract() == 0.0;
    let digits = match scaled {
        _ if is_whole => 0,
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$}{prefix}")
}

/// Formats a number of bytes, as `1.23 MB`.
pub(super) fn bytes(value: u64) -> String {
    let text = amount(value as f64);
    let has_prefix = text.contains(' ');
    text + if has_prefix { "B" } else { " B" }
}

/// Formats seconds in at most two units, as `1h 2m`.
pub(super) fn seconds(value: f64) -> String {
    let whole = Duration::try_from_secs_f64(value.floor()).unwrap_or_default();
    let text = humantime::format_duration(whole).to_string();
    let units: Vec<_> = text.split(' ').take(2).collect();
    units.join(" ")
}

/// Wraps a text at spaces, and within words that are longer than a line. All lines but the first are indented.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(INDENT.len() + 1);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_inclusive(' ') {
        let mut word = word.to_owned();
        while line.chars().count() + word.trim_end().chars().count() > width {
            if line.trim().is_empty() {
                let free = width - line.chars().count();
                let at = word
                    .char_indices()
                    .nth(free)
                    .map_or(word.len(), |(at, _)| at);
                let rest = word.split_off(at);
                line.push_str(&word);
                word = rest;
            }
            lines.push(line.trim_end().to_owned());
            INDENT.clone_into(&mut line);
        }
        line.push_str(&word);
    }
    lines.push(line.trim_end().to_owned());
    lines
}

const INDENT: &str = "  ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_broken_at_spaces_or_in_a_word() {
        for (text, width, lines) in [
            (
                "no_header 3: turn it on",
                30,
                &["no_header 3: turn it on"][..],
            ),
            (
                "no_header 3: turn it on",
                14,
                &["no_header 3:", "  turn it on"],
            ),
            ("open 1   new 2/s", 9, &["open 1", "  new 2/s"]),
            ("abcdefghij", 6, &["abcdef", "  ghij"]),
            ("a bcdefgh", 6, &["a", "  bcde", "  fgh"]),
            ("", 6, &[""]),
        ] {
            assert_eq!(wrap(text, width), lines, "{text} {width}");
        }
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (value, text) in [
            (0.0, "0"),
            (5.25, "5.25"),
            (999.0, "999"),
            (1234.0, "1.23 k"),
            (56_789_000.0, "56.8 M"),
        ] {
            assert_eq!(amount(value), text);
        }
        assert_eq!(bytes(12), "12 B");
        assert_eq!(bytes(2500), "2.50 kB");
        assert_eq!(seconds(3725.9), "1h 2m");
        assert_eq!(seconds(0.4), "0s");
        assert_eq!(seconds(f64::NAN), "0s");
    }
}
