//! The command line with its help texts: an example, then the options below their headings. `-h` leaves out the options that few
//! need; `--help` has all.

use std::ffi::OsString;
use std::net::SocketAddr;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};
use peername_daemon::options::heading::{LOG, OPERATION, TUNING};
use peername_daemon::options::server_option;
use peername_daemon::usage::secrets::mask_error;
use peername_observe::shell::quote;

use crate::Args;
use crate::separator::context_text;

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

/// Replaces clap's tips: for an unknown subcommand, by the list of subcommands; for an unknown option, by the commands that
/// have it. If the subcommand or option is similar to a known one, only that tip stays. The usage would distract from a tip.
fn with_tips(mut error: clap::Error, command: &Command, argv: &[OsString]) -> clap::Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand if has_similar(&error, ContextKind::SuggestedSubcommand) => {
            error.remove(ContextKind::Suggested);
            error.remove(ContextKind::Usage);
        }
        ErrorKind::InvalidSubcommand => {
            error.remove(ContextKind::Usage);
            let mut tip = format!(
                "the subcommands are {}",
                subcommands(command, argv).join(", ")
            );
            let named = named_command(command, argv);
            if named.get_name() == "doctor" {
                tip.push_str("; without one it checks what `peername proxy` needs");
            }
            let tips = ContextValue::StyledStrs(vec![tip.into()]);
            error.insert(ContextKind::Suggested, tips);
        }
        ErrorKind::UnknownArgument => {
            if let Some(tip) = tip_for_unknown(command, &error, argv) {
                // clap's suggestion is not what is meant, and the usage would show it, too.
                error.remove(ContextKind::SuggestedArg);
                error.remove(ContextKind::Usage);
                let tips = ContextValue::StyledStrs(vec![tip.into()]);
                error.insert(ContextKind::Suggested, tips);
            } else if has_similar(&error, ContextKind::SuggestedArg) {
                // Removes clap's tip to pass the word as a value.
                error.remove(ContextKind::Suggested);
                error.remove(ContextKind::Usage);
            }
        }
        ErrorKind::ArgumentConflict => {
            // The usage would show one of the two options, and others that conflict with it.
            error.remove(ContextKind::Usage);
            if let Some(tip) = tip_for_conflict(&error) {
                let tips = ContextValue::StyledStrs(vec![tip.into()]);
                error.insert(ContextKind::Suggested, tips);
            }
        }
        _ => {}
    }
    error
}

fn has_similar(error: &clap::Error, kind: ContextKind) -> bool {
    error.get(kind).is_some()
}

/// The reason why an option can't be combined with others, and what to do instead.
fn tip_for_conflict(error: &clap::Error) -> Option<String> {
    let options = [ContextKind::InvalidArg, ContextKind::PriorArg]
        .into_iter()
        .filter_map(|kind| context_text(error, kind))
        .collect::<Vec<_>>()
        .join(" ");
    let tip = if options.contains("--config") {
        "write the option as a key in a table of the file; docs/config.md has the tables"
    } else if options.contains("--auto-passthrough") {
        "with --auto-passthrough a client decides which of its requests are not seen, so nothing could be denied; \
         --passthrough HOST names such a host"
    } else if options.split(' ').any(|word| word == "--connect") {
        "with --connect the program is a client: it sends headers, and accepts nothing to which this option applies"
    } else {
        return None;
    };
    Some(tip.to_owned())
}

/// The tip for an option that the command does not know: an option of its own with another name, or the commands that have it.
fn tip_for_unknown(command: &Command, error: &clap::Error, argv: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let named = named_command(command, argv);
    let Some(name) = unknown.strip_prefix("--") else {
        return tip_for_second_value(named, argv, unknown).or_else(|| tip_for_word(named, unknown));
    };
    let synonym = server_option(named, name).or_else(|| plural_option(named, name));
    let owners = owners(command, argv, name);
    if synonym.is_none() && !owners.is_empty() {
        return Some(format!("it is an option of {}", owners.join(", ")));
    }
    let option = synonym.or_else(|| shorter_option(named, name))?;
    Some(format!("`peername {}` has --{option}", named.get_name()))
}

/// The tip for a word after the value of an option that may be repeated.
fn tip_for_second_value(named: &Command, argv: &[OsString], word: &str) -> Option<String> {
    if word.starts_with('-') {
        return None;
    }
    let at = argv.iter().position(|given| given == word)?;
    let before = argv.get(..at)?.iter().rev().take(2);
    let option = before
        .filter_map(|word| word.to_str()?.strip_prefix("--"))
        .find_map(|option| option.split('=').next())?;
    let is_repeatable =
        |arg: &Arg| arg.get_long() == Some(option) && matches!(arg.get_action(), ArgAction::Append);
    named
        .get_arguments()
        .any(is_repeatable)
        .then(|| format!("repeat the option: --{option} {}", quote(word)))
}

/// The tip for a word that belongs to an option, or is a file to read from standard input.
fn tip_for_word(named: &Command, word: &str) -> Option<String> {
    let option = match (named.get_name(), word) {
        ("peername", "-v") => return Some("-V prints the version".to_owned()),
        (_, word) if word.starts_with('-') => return None,
        ("decode", word) => return Some(format!("it reads standard input: < {}", quote(word))),
        ("upgrade", _) => "pid",
        ("init" | "show" | "export" | "rotate" | "env", _) => "ca",
        (_, word) if word.ends_with(".toml") => "config",
        (_, word) if word.parse::<SocketAddr>().is_ok() => "target",
        _ => return None,
    };
    has_option(named, option).then(|| format!("write --{option} {}", quote(word)))
}

/// The commands that have this option: first those below and beside the named command, then those above it.
fn owners(command: &Command, argv: &[OsString], option: &str) -> Vec<String> {
    let mut owners = Vec::new();
    let mut named = named_commands(command, argv);
    while let Some(parent) = named.pop() {
        let mut path = "`peername".to_owned();
        for command in named.iter().chain([&parent]).skip(1) {
            path = format!("{path} {}", command.get_name());
        }
        owners.extend(
            parent
                .get_subcommands()
                .filter(|command| !command.is_hide_set() && has_option(command, option))
                .map(|command| format!("{path} {}`", command.get_name())),
        );
    }
    owners
}

/// The option `ports` for `port`.
fn plural_option<'a>(command: &'a Command, name: &str) -> Option<&'a str> {
    shown_options(command).find(|option| option.strip_suffix('s') == Some(name))
}

/// The option `allow` for `allow-host` or `allows`.
fn shorter_option<'a>(command: &'a Command, name: &str) -> Option<&'a str> {
    shown_options(command).find(|option| {
        name.strip_prefix(option)
            .is_some_and(|rest| rest == "s" || rest.starts_with('-'))
    })
}

fn has_option(command: &Command, option: &str) -> bool {
    shown_options(command).any(|shown| shown == option)
}

fn shown_options(command: &Command) -> impl Iterator<Item = &str> {
    command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .filter_map(Arg::get_long)
}

/// The command that these words name.
fn named_command<'a>(command: &'a Command, argv: &[OsString]) -> &'a Command {
    named_commands(command, argv)
        .last()
        .copied()
        .unwrap_or(command)
}

/// The commands that these words name, each a subcommand of the one before; the first is `command`.
fn named_commands<'a>(command: &'a Command, argv: &[OsString]) -> Vec<&'a Command> {
    // `help COMMAND` is about the command, too.
    let mut words = argv.iter().skip(1).filter(|word| *word != "help");
    let mut named = vec![command];
    let mut last = command;
    while let Some(next) = words.next().and_then(|word| last.find_subcommand(word)) {
        named.push(next);
        last = next;
    }
    named
}

/// The subcommands of the command that these words name.
fn subcommands<'a>(command: &'a Command, argv: &[OsString]) -> Vec<&'a str> {
    named_command(command, argv)
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(Command::get_name)
        .filter(|name| *name != "help")
        .collect()
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
