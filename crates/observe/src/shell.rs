//! Commands in messages, quoted for the shell into which they are pasted.

use std::borrow::Cow;
use std::ffi::OsStr;

/// Quotes a word for POSIX shells and zsh, and for JAVA_TOOL_OPTIONS, which knows quotes but no backslash (JVM Tool
/// Interface). A word without special characters stays as it is; bytes that are not UTF-8 are replaced.
pub fn quote<W: AsRef<OsStr> + ?Sized>(word: &W) -> Cow<'_, str> {
    let text = word.as_ref().to_string_lossy();
    // zsh replaces `=name` by the path of a command.
    let is_plain = !text.is_empty() && !text.starts_with('=') && text.chars().all(is_plain_char);
    if is_plain {
        return text;
    }
    Cow::Owned(format!("'{}'", text.replace('\'', r#"'"'"'"#)))
}

fn is_plain_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c)
}

/// Quotes each word, and joins them by spaces.
pub fn command_line<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> String {
    let mut line = String::new();
    for word in words {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&quote(&word));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        let words = ["-6", "[::1]:1000", "it's", "", "=ls", "--a=b", "*.a.test"];
        assert_eq!(
            command_line(words),
            r#"-6 '[::1]:1000' 'it'"'"'s' '' '=ls' --a=b '*.a.test'"#
        );
    }
}
