//! Quoting of words in commands that are printed.

/// Quotes a word for a POSIX shell and for Java, which knows quotes (JVM Tool Interface, JAVA_TOOL_OPTIONS) but no
/// backslash.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@".contains(&byte);
    match text.bytes().all(plain) && !text.is_empty() {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r#"'"'"'"#)),
    }
}
