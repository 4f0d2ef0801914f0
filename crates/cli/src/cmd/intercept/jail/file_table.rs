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
    /// The options of the file whose values those of the command line follow.
    appended: Vec<String>,
    /// Those values of the command line, as errors name them: `--hide /tmp`.
    appended_values: Vec<String>,
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
            given_options: line.words_except(&[]).filter_map(option_of).collect(),
            appended: APPENDED
                .iter()
                .flat_map(|option| file.words_of(option))
                .filter_map(option_of)
                .collect(),
            appended_values: APPENDED
                .iter()
                .flat_map(|option| line.words_of(option))
                .map(|word| word.to_string_lossy().replacen('=', " ", 1))
                .collect(),
            has_allow: file.words_of("allow").next().is_some(),
        }
    }

    /// Adds the place in the file to each error that begins with an option, unless it is about the command line.
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
        let Some(option) = Origin::option_of(error) else {
            return error.to_owned();
        };
        let is_about_line = match self.appended.iter().any(|appended| appended == option) {
            // Both are in force.
            true => self.names_value_of_line(error),
            false => self.is_on_line(option),
        };
        match is_about_line {
            true => error.to_owned(),
            false => self.origin.of(error),
        }
    }

    fn names_value_of_line(&self, error: &str) -> bool {
        self.appended_values
            .iter()
            .filter_map(|value| error.strip_prefix(value.as_str()))
            .any(|rest| rest.is_empty() || rest.starts_with([':', ',', ' ']))
    }

    fn is_on_line(&self, option: &str) -> bool {
        self.given_options.iter().any(|given| given == option)
    }

    /// What would allow a request, and where the file takes it; the option, where the command line replaces that key.
    pub(super) fn place_of(&self, remedy: &Remedy) -> String {
        if !matches!(remedy, Remedy::Allow(_)) && self.is_on_line(remedy.option()) {
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

/// `option` of `--option=value`.
fn option_of(word: &OsString) -> Option<String> {
    Origin::option_of(&word.to_string_lossy()).map(str::to_owned)
}

/// The ids of the options whose values follow those of the file.
pub(super) const APPENDED: [&str; 4] = ["allow", "deny", "rules", "hide"];
