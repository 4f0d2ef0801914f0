//! Environment variables.

use crate::imports;

/// The current value of an environment variable.
pub fn variable(name: &[u8]) -> Option<&'static [u8]> {
    imports::environment(name).map(|value| value.to_bytes())
}

/// Whether LD_PRELOAD lists a path that ends with `file`.
pub fn is_preloaded(file: &[u8]) -> bool {
    let libraries = variable(b"LD_PRELOAD").unwrap_or_default();
    libraries
        .split(|&byte| byte == b' ' || byte == b':')
        .any(|path| path.ends_with(file))
}

/// Parses a number as atoi(3) does: text without digits is 0. The result is clamped to the range from -1 to `i32::MAX`.
pub fn atoi(text: &[u8]) -> i32 {
    let text = text.trim_ascii_start();
    let (text, sign) = match text {
        [b'-', rest @ ..] => (rest, -1),
        [b'+', rest @ ..] => (rest, 1),
        _ => (text, 1),
    };
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    let value = digits.fold(0_i32, |value, byte| {
        let digit = byte.saturating_sub(b'0');
        value.saturating_mul(10).saturating_add(digit.into())
    });
    value.saturating_mul(sign).max(-1)
}
