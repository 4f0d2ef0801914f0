//! The `[jail]` table of a file beside the options of a command line: which of the two an error is about, and where the file
//! takes what a denied request needs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use peername_daemon::options::{Given, Origin};
use peername_daemon::usage::Usage;
use peername_daemon::usage::error_text::with_causes;
use peername_intercept::Remedy;

/// The table of a file.
#[derive(Clone, Debug)]
pub(super) struct FileTable {
    path: PathBuf,
    origin: Origin,
    /// The options of the command line.
    given_options: Vec<String>,
    /// Whether the rules are those of the key `allow`, and not of `rules`.
    has_allow: bool,
}

impl FileTable {
    /// Of the file at `path`, beside a command line.
    pub(super) fn new<T: clap::Args>(
        path: &Path,
        origin: Origin,
        file: &Given<T>,
        line: &Given<T>,
    ) -> Self {
        Self {
            path: path.to_owned(),
            origin,
            given_options: line.words_except(&[]).map(option_of).collect(),
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
        match self.is_on_line(option) || !option.starts_with("--") {
            true => error.to_owned(),
            false => self.origin.of(error),
        }
    }

    fn is_on_line(&self, option: &str) -> bool {
        self.given_options.iter().any(|given| given == option)
    }

    /// What would allow a request, and where the file takes it; the option, where the command line replaces that key.
    pub(super) fn place_of(&self, remedy: &Remedy) -> String {
        let option = format!("--{}", remedy.option());
        if !matches!(remedy, Remedy::Allow(_)) && self.is_on_line(&option) {
            return remedy.to_string();
        }
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

/// `--option` of `--option=value`.
fn option_of(word: &OsString) -> String {
    let word = word.to_string_lossy();
    word.split('=').next().unwrap_or_default().to_owned()
}
