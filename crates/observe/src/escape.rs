//! Escapes what a peer sent before it is logged, so that a peer can't forge a log line or send control sequences to a
//! terminal.

use std::fmt::Write;

/// Appends `value` with spaces, `"`, `\` and all that is not printable ASCII as `%NN`, as in a URL: no log format has to escape
/// the result again. After `max_bytes` the rest is cut, and `...(N_octets)` follows, where N is the whole length.
///
/// `also` lists further bytes to escape, such as separators of the surrounding format. With `%` among them the
/// result is reversible, except for the part that is cut.
pub fn escape_into(out: &mut String, value: &[u8], max_bytes: usize, also: &[u8]) {
    out.reserve(value.len().min(max_bytes));
    for &byte in value.iter().take(max_bytes) {
        match byte {
            b'"' | b'\\' | ..=0x20 | 0x7f.. => {
                let _ = write!(out, "%{byte:02x}");
            }
            _ if also.contains(&byte) => {
                let _ = write!(out, "%{byte:02x}");
            }
            _ => out.push(char::from(byte)),
        }
    }
    if value.len() > max_bytes {
        let _ = write!(out, "...({}_octets)", value.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_length_is_bounded() {
        let mut out = String::new();
        escape_into(&mut out, b"a b\n\x1b[31m\"\\\xff%=", 256, b"%=");
        assert_eq!(out, "a%20b%0a%1b[31m%22%5c%ff%25%3d");
        out.clear();
        escape_into(&mut out, &[b'x'; 300], 256, b"");
        assert_eq!(out.len(), 256 + "...(300_octets)".len());
    }
}
