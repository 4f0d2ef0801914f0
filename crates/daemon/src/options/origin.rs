//! Where options were given, and what is wrong there.

use std::path::{Path, PathBuf};

/// Where options were given.
#[derive(Clone, Debug)]
pub enum Origin {
    /// On the command line.
    CommandLine,
    /// In a table of a file.
    Table {
        /// The file.
        path: PathBuf,
        /// The line at which the table begins.
        line: usize,
        /// As a file writes it: `[[listen]]`.
        name: &'static str,
        /// The keys of the table.
        keys: Vec<TableKey>,
    },
}

/// A key of a table.
#[derive(Clone, Debug)]
pub struct TableKey {
    /// The name of its option.
    pub(super) option: String,
    /// As the file writes it: an older name, maybe.
    pub(super) key: String,
    pub(super) line: usize,
}

impl Origin {
    /// The name of the option that an error or a word of a command line begins with.
    pub fn option_of(text: &str) -> Option<&str> {
        split_option(text).map(|(option, _)| option)
    }

    /// An error that begins with the option that it is about, with its place: that of the key, or of the table where the key is
    /// missing. In a file an option is a key.
    pub fn of(&self, error: &str) -> String {
        let Self::Table {
            path,
            line,
            name,
            keys,
        } = self
        else {
            return error.to_owned();
        };
        let place = |line: usize| format!("{}, line {line}, {name}", path.display());
        let Some((option, rest)) = split_option(error) else {
            return format!("{}: {error}", place(*line));
        };
        match keys.iter().find(|key| key.option == option) {
            Some(TableKey { key, line, .. }) => format!("{}: {key}{rest}", place(*line)),
            None => format!("{}: {option}{rest}", place(*line)),
        }
    }
}

/// The name of the option that an error begins with, and the rest.
fn split_option(error: &str) -> Option<(&str, &str)> {
    error.strip_prefix("--").map(split_name)
}

/// The name of an option at the beginning of a text, and the rest.
pub(super) fn split_name(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    text.split_at(end.unwrap_or(text.len()))
}

/// An error at a byte of a file.
#[derive(Clone, Debug)]
pub(super) struct Mistake {
    /// The byte.
    pub(super) at: usize,
    /// The key, if it belongs to one.
    pub(super) key: Option<String>,
    /// What is wrong.
    pub(super) why: String,
}

impl Mistake {
    /// An error of the parser.
    pub(super) fn of_syntax(error: &toml::de::Error) -> Self {
        // What begins with a digit and is no number, such as an address, or with a letter of `true` or `false`.
        let is_unquoted = ["invalid float", "invalid time", "invalid boolean"]
            .iter()
            .any(|known| error.message().starts_with(known));
        let advice = match is_unquoted {
            true => "; text needs quotes, as in \"127.0.0.1:8443\"",
            false => "",
        };
        Self {
            at: error.span().map_or(0, |span| span.start),
            key: None,
            why: format!(
                "not TOML: {}{advice}; docs/config.md has examples",
                error.message()
            ),
        }
    }

    /// The error with file, line and key.
    pub(super) fn locate(&self, path: &Path, text: &str) -> String {
        let (path, why, line) = (path.display(), &self.why, line_of(text, self.at));
        match &self.key {
            Some(key) => format!("{path}, line {line}, {key}: {why}"),
            None => format!("{path}, line {line}: {why}"),
        }
    }
}

/// The line of a byte, from 1.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or_default();
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}
