//! The `[jail]` table of a file beside the options of a command line: which of the two an error is about, and where the file
//! takes what a denied request needs.

use std::path::{Path, PathBuf};

use peername_daemon::options::{Given, Origin};
use peername_daemon::usage::Usage;
use peername_daemon::usage::error_text::with_causes;
use peername_intercept::Remedy;

use super::options::Args;

/// The table of a file.
#[derive(Clone, Debug)]
pub(super) struct FileTable {
    path: PathBuf,
    origin: Origin,
    /// The words of the command line.
    line: Vec<String>,
    /// Whether the rules are those of the key `allow`, and not of `rules`.
    has_allow: bool,
}

impl FileTable {
    pub(super) fn new(path: &Path, origin: Origin, file: &Given<Args>, line: &Given<Args>) -> Self {
        let line = line.words_except(&[]).map(|word| word.to_string_lossy());
        Self {
            path: path.to_owned(),
            origin,
            line: line.map(String::from).collect(),
            has_allow: file.words_of("allow").next().is_some(),
        }
    }

    /// Adds the place in the file to each error that begins with an option, unless the command line has given that option.
    pub(super) fn locate(&self, error: anyhow::Error) -> anyhow::Error {
        match error.downcast() {
            Ok(Usage(errors)) => {
                let lines: Vec<_> = errors.lines().map(|line| self.located(line)).collect();
                Usage(lines.join("\n")).into()
            }
            Err(other) => anyhow::Error::msg(self.located(&with_causes(&other))),
        }
    }

    fn located(&self, error: &str) -> String {
        let option = error.split([' ', ':']).next().unwrap_or_default();
        let is_given = |word: &String| word.split('=').next() == Some(option);
        match self.line.iter().any(is_given) || !option.starts_with("--") {
            true => error.to_owned(),
            false => self.origin.of(error),
        }
    }

    /// What would allow a request, and where the file takes it.
    pub(super) fn place_of(&self, remedy: &Remedy) -> String {
        let (key, action) = match remedy {
            Remedy::Allow(_) if !self.has_allow => ("rules", "allow "),
            other => (other.option(), ""),
        };
        let values: Vec<_> = remedy
            .values()
            .iter()
            .map(|value| format!("\"{action}{value}\""))
            .collect();
        format!(
            "{} in {key} of {}",
            values.join(" and "),
            self.path.display()
        )
    }
}
