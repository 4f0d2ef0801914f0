//! Numbers as people read them.

use std::time::Duration;

/// `1234567.0` as `1.23 M`.
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

/// Bytes, as `1.23 MB`.
pub(super) fn bytes(value: u64) -> String {
    let text = amount(value as f64);
    match text.contains(' ') {
        true => text + "B",
        false => text + " B",
    }
}

/// Seconds, in two units at most.
pub(super) fn seconds(value: f64) -> String {
    let whole = Duration::try_from_secs_f64(value.floor()).unwrap_or_default();
    let text = humantime::format_duration(whole).to_string();
    let units: Vec<_> = text.split(' ').take(2).collect();
    units.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

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
