//! The `[jail]` table of a file beside the options of a command line: which of the two an error is about, and which key of the
//! table takes the remedy of a denial.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use peername_daemon::options::{Given, Origin};
use peername_daemon::usage::UsageError;
use peername_daemon::usage::error_text::with_causes;
use peername_intercept::Remedy;
use peername_observe::shell::quote;

/// The table of a file.
#[derive(Clone, Debug)]
pub(super) struct FileTable {
    path: PathBuf,
    origin: Origin,
    /// The options of the command line.
    given_options: Vec<String>,
    /// The options in the file to whose values the command line adds.
    appended: Vec<String>,
    /// The values that the command line adds, as errors name them: `--hide /tmp`.
    appended_values: Vec<String>,
    /// Whether the file has its rules in the key `allow`, and not in `rules`.
    has_allow: bool,
}

impl FileTable {
    /// Creates the table `file` of the file at `path`, beside the options of `command_line`.
    pub(super) fn new<T: clap::Args>(
        path: &Path,
        origin: Origin,
        file: &Given<T>,
        command_line: &Given<T>,
    ) -> Self {
        Self {
            path: path.to_owned(),
            origin,
            given_options: command_line
                .words_except(&[])
                .filter_map(option_name)
                .collect(),
            appended: APPENDED
                .iter()
                .flat_map(|option| file.words_of(option))
                .filter_map(option_name)
                .collect(),
            appended_values: APPENDED
                .iter()
                .flat_map(|option| command_line.words_of(option))
                .map(|word| word.to_string_lossy().replacen('=', " ", 1))
                .collect(),
            has_allow: file.words_of("allow").next().is_some(),
        }
    }

    /// The option that names the file, quoted for a shell.
    pub(super) fn option(&self) -> String {
        format!("--config {}", quote(&self.path))
    }

    /// Adds the place in the file to each error that begins with an option, unless it is about the command line.
    pub(super) fn locate(&self, error: anyhow::Error) -> anyhow::Error {
        match error.downcast() {
            Ok(UsageError(errors)) => {
                let lines: Vec<_> = errors.lines().map(|line| self.locate_line(line)).collect();
                UsageError(lines.join("\n")).into()
            }
            Err(other) => anyhow::Error::msg(self.locate_line(&with_causes(&other))),
        }
    }

    fn locate_line(&self, error: &str) -> String {
        let Some(option) = Origin::option_name(error) else {
            return error.to_owned();
        };
        let is_appended = self.appended.iter().any(|appended| appended == option);
        let is_about_command_line = if is_appended {
            // The values of both are in force.
            self.names_command_line_value(error)
        } else {
            self.is_on_command_line(option)
        };
        if is_about_command_line {
            error.to_owned()
        } else {
            self.origin.locate(error)
        }
    }

    fn names_command_line_value(&self, error: &str) -> bool {
        self.appended_values
            .iter()
            .filter_map(|value| error.strip_prefix(value.as_str()))
            .any(|rest| rest.is_empty() || rest.starts_with([':', ',', ' ']))
    }

    fn is_on_command_line(&self, option: &str) -> bool {
        self.given_options.iter().any(|given| given == option)
    }

    /// Describes what would allow a request: the value and the key of the file that takes it, or the option if the command line
    /// replaces that key.
    pub(super) fn describe_remedy(&self, remedy: &Remedy) -> String {
        if !matches!(remedy, Remedy::Allow(_)) && self.is_on_command_line(remedy.option()) {
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

/// Returns `option` of `--option=value`.
fn option_name(word: &OsString) -> Option<String> {
    Origin::option_name(&word.to_string_lossy()).map(str::to_owned)
}

/// The ids of the options whose values on the command line are added to those of the file.
pub(super) const APPENDED: [&str; 4] = ["allow", "deny", "rules", "hide"];

#[cfg(test)]
mod tests {
    use clap::{ArgAction, Args, Command};

    use super::super::in_jail::LISTENER_OPTIONS;
    use super::super::options;
    use super::*;

    /// The ids of the other repeatable options: those of a command line replace those of the file.
    const REPLACED: [&str; 15] = [
        "allow_destination",
        "allow_tcp",
        "allow_unix",
        "check",
        "check_body_exempt",
        "check_ca",
        "check_header",
        "check_take",
        "extra_ca",
        "host_answer_timeout",
        "host_idle_timeout",
        "inject",
        "name_ranges",
        "passthrough",
        "ports",
    ];

    #[test]
    fn each_repeatable_option_is_appended_or_replaced() {
        let command = options::Args::augment_args(Command::new("jail"));
        let mut repeatable: Vec<_> = command
            .get_arguments()
            .filter(|arg| matches!(arg.get_action(), ArgAction::Append))
            .map(|arg| arg.get_id().as_str())
            .filter(|id| !LISTENER_OPTIONS.contains(id))
            .collect();
        repeatable.sort_unstable();
        let mut listed = [&APPENDED[..], &REPLACED].concat();
        listed.sort_unstable();
        assert_eq!(repeatable, listed);
    }
}
