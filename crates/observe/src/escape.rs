//! Escapes what a peer sent before it is logged, so that a peer can't forge a log line or send control sequences to a
//! terminal.

use std::fmt::Write;
use std::sync::Arc;

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

/// Escapes quotation marks, backslashes and what is not printable as Rust does (`\n`, `\u{1b}`), and truncates the text to 256
/// characters.
pub fn printable(text: &str) -> Arc<str> {
    text.chars()
        .flat_map(escape_char)
        .take(MAX_PRINTABLE)
        .collect::<String>()
        .into()
}

/// Escapes what is not printable as Rust does, and leaves quotation marks and backslashes: the text may be escaped in part.
pub fn escape_controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '"' | '\'' | '\\') {
            out.push(c);
        } else {
            out.extend(c.escape_debug());
        }
    }
    out
}

/// Escapes a character as in a text between double quotes, which an apostrophe does not end.
fn escape_char(c: char) -> impl Iterator<Item = char> {
    let is_apostrophe = c == '\'';
    let escaped = (!is_apostrophe).then(|| c.escape_debug());
    is_apostrophe
        .then_some(c)
        .into_iter()
        .chain(escaped.into_iter().flatten())
}

/// The maximum number of characters of a printable text.
const MAX_PRINTABLE: usize = 256;

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

    #[test]
    fn printable_text_is_short_and_has_no_control_characters() {
        let text = printable(&("no\r\n\u{1b}[31m \u{202e}".to_owned() + &"x".repeat(1000)));
        assert!(
            text.starts_with("no\\r\\n\\u{1b}[31m \\u{202e}xx"),
            "{text}"
        );
        assert_eq!(text.len(), MAX_PRINTABLE);
        assert_eq!(
            &*printable("the policy's \"result\""),
            r#"the policy's \"result\""#
        );
        let escaped = escape_controls("it's \"\\n\" …\n\u{1b}\u{202e}");
        assert_eq!(escaped, r#"it's "\n" …\n\u{1b}\u{202e}"#);
    }
}
