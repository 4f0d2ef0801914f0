//! The command line with its help texts: an example, then the options below their headings. `-h` leaves out the options that few
//! need; `--help` has all.

mod tips;

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};
use peername_daemon::options::heading::{LOG, OPERATION, TUNING};
use peername_daemon::usage::secrets::mask_error;

use crate::Args;
use tips::{named_command, with_tips};

/// Parses a command line.
///
/// # Errors
///
/// Wrong usage, without the secrets of values, and help that is requested.
pub(crate) fn parse(argv: &[OsString]) -> Result<Args, clap::Error> {
    let mut command = command_line();
    let mut matches = command
        .try_get_matches_from_mut(argv)
        .map_err(|error| with_tips(mask_error(error), &command, argv))?;
    Args::from_arg_matches_mut(&mut matches)
        .map_err(|error| error.format(&mut named_command(&command, argv).clone()))
}

/// The definition of the command line.
pub(crate) fn command_line() -> Command {
    arrange(Args::command())
}

fn arrange(command: Command) -> Command {
    let help = help_option(&command);
    move_tuning_last(command)
        .help_template(TEMPLATE)
        .disable_help_flag(true)
        .arg(help)
        .mut_subcommands(arrange)
}

/// The option `-h`. If there are headings, it is listed below the last one before that of tuning.
fn help_option(command: &Command) -> Arg {
    let has_heading = |heading: &&str| {
        command
            .get_arguments()
            .any(|arg| arg.get_help_heading() == Some(heading))
    };
    let help = if command.get_arguments().any(has_more_in_long_help) {
        "Print help; --help prints all options, and what their values mean"
    } else {
        "Print help"
    };
    Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::Help)
        .help(help)
        .help_heading([LOG, OPERATION].into_iter().find(has_heading))
}

fn has_more_in_long_help(arg: &Arg) -> bool {
    let is_hidden = arg.get_help_heading() == Some(TUNING) || arg.is_hide_short_help_set();
    let mut values = arg.get_possible_values().into_iter();
    is_hidden || values.any(|value| value.get_help().is_some())
}

/// Moves the options for tuning behind all others, and hides them in `-h`.
fn move_tuning_last(mut command: Command) -> Command {
    let is_tuning = |arg: &&Arg| arg.get_help_heading() == Some(TUNING);
    let tuning: Vec<_> = command
        .get_arguments()
        .filter(is_tuning)
        .map(|arg| arg.get_id().clone())
        .collect();
    for id in tuning {
        // `mut_arg` moves the option to the end, and headings are in the order of their first options.
        command = command.mut_arg(id, |arg| arg.hide_short_help(true));
    }
    command
}

/// clap's default template, except that the text before the help, the example, comes after the usage.
const TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}

{before-help}{all-args}{after-help}";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use peername_daemon::usage::secrets::mask_value;

    use super::*;

    /// Calls `check` with each command that is shown, and with its name, such as `peername routes add`.
    fn for_each_command(command: &Command, path: &str, check: &mut impl FnMut(&Command, &str)) {
        check(command, path);
        for subcommand in command.get_subcommands() {
            if !subcommand.is_hide_set() && subcommand.get_name() != "help" {
                let path = format!("{path} {}", subcommand.get_name());
                for_each_command(subcommand, &path, check);
            }
        }
    }

    /// Calls `check` with each command, as [`for_each_command`].
    fn check_all(mut check: impl FnMut(&Command, &str)) {
        let mut command = command_line();
        command.build();
        for_each_command(&command, "peername", &mut check);
    }

    fn options(command: &Command) -> impl Iterator<Item = &Arg> {
        command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set() && !arg.is_positional())
    }

    #[test]
    fn errors_quote_no_secret_of_an_option() {
        check_all(|command, path| {
            for option in options(command).filter(|option| may_have_secret(option)) {
                let name = format!("--{}", option.get_long().unwrap_or_default());
                let shown = mask_value(&name, "user:s3cr3t@a.test");
                assert!(!shown.contains("s3cr3t"), "{path} {name}: {shown}");
            }
        });
    }

    fn may_have_secret(option: &Arg) -> bool {
        let names = option.get_value_names().unwrap_or_default();
        names
            .iter()
            .any(|name| ["URL", "HOST=HEADER@FILE"].contains(&name.as_str()))
    }

    #[test]
    fn short_help_has_few_options() {
        check_all(|command, path| {
            let count = options(command)
                .filter(|arg| !arg.is_hide_short_help_set())
                .count();
            assert!(count <= MAX_SHOWN, "{path} -h has {count} options");
        });
    }

    #[test]
    fn options_have_headings_where_there_are_many() {
        check_all(|command, path| {
            let (headed, bare): (Vec<_>, Vec<_>) =
                options(command).partition(|arg| arg.get_help_heading().is_some());
            assert!(
                bare.is_empty() || headed.is_empty() && bare.len() <= MAX_WITHOUT_HEADING,
                "{path}: without a heading: {:?}",
                bare.iter().map(|arg| arg.get_id()).collect::<Vec<_>>()
            );
        });
    }

    #[test]
    fn headings_come_once_and_tuning_last() {
        check_all(|command, path| {
            let help = command.clone().render_long_help().to_string();
            let is_heading = |line: &&str| line.ends_with(':') && !line.starts_with([' ', '`']);
            let headings: Vec<_> = help.lines().filter(is_heading).collect();
            let unique: BTreeSet<_> = headings.iter().collect();
            assert_eq!(unique.len(), headings.len(), "{path}: {headings:?}");
            let tuning = format!("{TUNING}:");
            let at = headings.iter().position(|heading| *heading == tuning);
            assert!(
                at.is_none_or(|at| at + 1 == headings.len()),
                "{path}: {headings:?}"
            );
            let short = command.clone().render_help().to_string();
            assert!(!short.contains(&tuning), "{path}");
            let last = short.lines().rfind(is_heading).unwrap_or_default();
            // The one that has -h as its last option.
            let common = ["Options", OPERATION, LOG].map(|heading| format!("{heading}:"));
            assert!(
                common.iter().any(|heading| heading == last),
                "{path}: {last}"
            );
        });
    }

    #[test]
    fn values_of_an_option_all_have_a_meaning_or_none() {
        check_all(|command, path| {
            for option in options(command) {
                let values = option.get_possible_values();
                let explained = values.iter().filter(|value| value.get_help().is_some());
                let count = explained.count();
                assert!(
                    count == 0 || count == values.len(),
                    "{path} {}",
                    option.get_id()
                );
            }
        });
    }

    #[test]
    fn help_begins_with_an_example_that_is_accepted() {
        check_all(|command, path| {
            let help = command.clone().render_help().to_string();
            let before_options = help
                .split("\n\n")
                .find(|part| part.starts_with("Example"))
                .unwrap_or_else(|| panic!("{path} has no example:\n{help}"));
            let examples: Vec<_> = before_options
                .lines()
                .filter_map(|line| line.strip_prefix("  "))
                .collect();
            assert!(
                examples.iter().any(|example| example.contains(path)),
                "{path}: {examples:?}"
            );
            for example in examples {
                let words = words(example);
                if let Err(error) = parse(&words) {
                    panic!("{example}: {error}");
                }
            }
        });
    }

    /// The words of peername's command in a line for a shell, without redirections and what is around its substitution.
    fn words(line: &str) -> Vec<OsString> {
        let command = line
            .split([';', '<', '>', '|', '(', ')'])
            .map(str::trim)
            .find(|part| part.starts_with("peername"));
        let mut words = Vec::new();
        for (index, part) in command.unwrap_or_default().split('\'').enumerate() {
            let is_quoted = index % 2 == 1;
            if is_quoted {
                words.push(part.into());
            } else {
                words.extend(part.split_whitespace().map(OsString::from));
            }
        }
        words
    }

    /// Options of `-h`: as many as fit on a screen or two.
    const MAX_SHOWN: usize = 25;
    const MAX_WITHOUT_HEADING: usize = 12;
}
