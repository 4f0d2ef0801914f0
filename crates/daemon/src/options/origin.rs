//! The origin of options, a command line or a table of a file, and errors with their position in a file.

use std::path::{Path, PathBuf};

use peername_observe::escape::escape_controls;

/// The origin of options.
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
    /// The name of the option that the key sets.
    pub(super) option: String,
    /// The key as the file writes it: the option's name or an older one.
    pub(super) key: String,
    pub(super) line: usize,
}

impl Origin {
    /// Returns the name of the option with which an error, or a word of a command line, begins.
    pub fn option_name(text: &str) -> Option<&str> {
        split_option(text).map(|(option, _)| option)
    }

    /// Returns an error with its file and line. An option at the beginning of the error becomes a key, and the line is that of
    /// the key if the table has it; else it is that of the table.
    pub fn locate(&self, error: &str) -> String {
        let Self::Table {
            path,
            line,
            name,
            keys,
        } = self
        else {
            return error.to_owned();
        };
        let path = escape_controls(&path.to_string_lossy());
        // A value of the file may be part of the error.
        let lines: Vec<_> = error.split('\n').map(escape_controls).collect();
        let error = lines.join("\n");
        let (option, rest) = split_option(&error).unwrap_or(("", &error));
        let (key, line) = match keys.iter().find(|key| key.option == option) {
            Some(TableKey { key, line, .. }) => (key.as_str(), line),
            None => (option, line),
        };
        format!("{path}, line {line}, {name}: {key}{rest}")
    }
}

/// Splits the name of an option, without dashes, from the error that begins with it.
fn split_option(error: &str) -> Option<(&str, &str)> {
    error.strip_prefix("--").map(split_name)
}

/// Splits the name of an option from the text that begins with it.
pub(super) fn split_name(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    text.split_at(end.unwrap_or(text.len()))
}

/// An error at a byte of a file.
#[derive(Clone, Debug)]
pub(super) struct Mistake {
    /// The offset of the byte.
    pub(super) at: usize,
    /// The key that is wrong, or whose value is.
    pub(super) key: Option<String>,
    /// What is wrong.
    pub(super) why: String,
}

impl Mistake {
    /// An error of the parser of this text.
    pub(super) fn of_syntax(error: &toml::de::Error, text: &str) -> Self {
        // The parser takes unquoted text for a number or a time if it begins with a digit, as addresses do, and for a boolean
        // if it begins as `true` or `false`.
        let is_unquoted = ["invalid float", "invalid time", "invalid boolean"]
            .iter()
            .any(|known| error.message().starts_with(known));
        let advice = if is_unquoted {
            "; text needs quotes, as in \"127.0.0.1:8443\""
        } else {
            ""
        };
        let span = error.span().unwrap_or_default();
        let key = match text.get(span.clone()) {
            Some(key) if error.message() == "duplicate key" => format!(" `{key}`"),
            _ => String::new(),
        };
        Self {
            at: span.start,
            key: None,
            why: format!(
                "not TOML: {}{key}{advice}; docs/config.md has examples",
                error.message()
            ),
        }
    }

    /// Returns the text of the error with file, line and key.
    pub(super) fn locate(&self, path: &Path, lines: &Lines) -> String {
        let (path, why, line) = (path.display(), &self.why, lines.line_of(self.at));
        let located = match &self.key {
            Some(key) => format!("{path}, line {line}, {key}: {why}"),
            None => format!("{path}, line {line}: {why}"),
        };
        // Another user may have written the file: a key may be any text.
        escape_controls(&located)
    }
}

/// The lines of a text, by the offsets of their ends.
pub(super) struct Lines {
    ends: Vec<usize>,
}

impl Lines {
    pub(super) fn of(text: &str) -> Self {
        Self {
            ends: text.match_indices('\n').map(|(at, _)| at).collect(),
        }
    }

    /// Returns the line of a byte, counted from 1.
    pub(super) fn line_of(&self, at: usize) -> usize {
        1 + self.ends.partition_point(|&end| end < at)
    }
}
