//! The command of a run, as a comment of its list.

use std::ffi::OsString;
use std::path::Path;

use peername_observe::shell::quote;

/// Writes a command as a line of a comment: quoted for a shell, and without characters that would end the line or move a
/// terminal's cursor. Words that look like secrets are masked, because the list is meant to be shared.
pub(super) fn as_comment(command: &[OsString]) -> String {
    let mut words = Vec::new();
    let mut is_value_secret = false;
    for word in command {
        let text = word.to_string_lossy();
        let is_secret = looks_secret(&text);
        // `--token VALUE`: the option's name may stay, its value may not.
        let names_value = is_secret && is_long_option(&text);
        let is_masked = is_value_secret || is_secret && !names_value;
        words.push(if is_masked { "***".into() } else { quote(word) });
        is_value_secret = names_value;
    }
    in_one_line(&words.join(" "))
}

/// Writes a list as an option takes it, `@FILE`, quoted for a shell. A path with characters that are not printable is left out.
pub(super) fn as_reference(path: &Path) -> String {
    let reference = format!("@{}", path.display());
    if reference.chars().all(is_printable) {
        quote(&reference).into_owned()
    } else {
        "@FILE".to_owned()
    }
}

fn is_long_option(word: &str) -> bool {
    word.strip_prefix("--").is_some_and(|name| {
        name.chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
    })
}

fn in_one_line(text: &str) -> String {
    text.chars()
        .take(MAX_COMMAND)
        .map(|c| if is_printable(c) { c } else { '?' })
        .collect()
}

/// Whether a comment may have this character: printable ASCII ends no line and moves no cursor.
pub(super) fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~')
}

/// Whether a word may hold a secret: a URL with a user, or one of [`SECRETS`].
fn looks_secret(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let has_user = word.split_once("://").is_some_and(|(_, rest)| {
        rest.split('/')
            .next()
            .is_some_and(|authority| authority.contains('@'))
    });
    has_user || SECRETS.iter().any(|name| word.contains(name))
}

/// Parts of words that name a secret.
const SECRETS: [&str; 8] = [
    "authorization",
    "bearer",
    "token",
    "secret",
    "passw",
    "api-key",
    "api_key",
    "apikey",
];
/// Characters of the command that are written.
const MAX_COMMAND: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_the_command_are_masked() {
        for (words, comment) in [
            (&["make", "test"][..], "make test"),
            (&["curl", "-H", "Authorization: Bearer x"], "curl -H ***"),
            (&["psql", "postgres://u:p@db.test/x"], "psql ***"),
            (&["deploy", "--token=x", "now"], "deploy *** now"),
            (&["deploy", "--token", "x", "now"], "deploy --token *** now"),
            (&["curl", "-HX-Api-Key:x", "-psecret"], "curl *** ***"),
            (&["curl", "https://a.test/@x"], "curl https://a.test/@x"),
        ] {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            assert_eq!(as_comment(&words), comment);
        }
    }
}
