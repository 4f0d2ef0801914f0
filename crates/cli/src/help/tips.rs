//! The tips below an error about the command line: what to write instead.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};
use peername_daemon::options::server_option;
use peername_exec::program::{examine, search_path};
use peername_observe::shell::quote;

use crate::is_given;
use crate::separator::context_text;

/// Replaces clap's tips: for an unknown subcommand, by the list of subcommands; for an unknown option, by the commands that
/// have it. If the subcommand or option is similar to a known one, only that tip stays. The usage would distract from a tip.
pub(super) fn with_tips(
    mut error: clap::Error,
    command: &Command,
    argv: &[OsString],
) -> clap::Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand if has_similar_subcommand(&error) => {
            error.remove(ContextKind::Suggested);
            error.remove(ContextKind::Usage);
        }
        ErrorKind::InvalidSubcommand => {
            error.remove(ContextKind::SuggestedSubcommand);
            error.remove(ContextKind::Usage);
            let word = context_text(&error, ContextKind::InvalidSubcommand);
            let tip = word
                .and_then(|word| tip_for_word(named_command(command, argv), argv, &word))
                .unwrap_or_else(|| tip_for_subcommand(command, argv));
            set_tip(&mut error, tip);
        }
        ErrorKind::UnknownArgument => {
            if let Some(tip) = tip_for_unknown(command, &error, argv) {
                // clap's suggestion is not what is meant, and the usage would show it, too.
                error.remove(ContextKind::SuggestedArg);
                error.remove(ContextKind::Usage);
                set_tip(&mut error, tip);
            } else if error.get(ContextKind::SuggestedArg).is_some() {
                // Removes clap's tip to pass the word as a value.
                error.remove(ContextKind::Suggested);
                error.remove(ContextKind::Usage);
            }
        }
        ErrorKind::ArgumentConflict => {
            // The usage would show one of the two options, and others that conflict with it.
            error.remove(ContextKind::Usage);
            if let Some(tip) = tip_for_conflict(named_command(command, argv), &error) {
                set_tip(&mut error, tip);
            }
        }
        ErrorKind::MissingRequiredArgument => {
            if let Some(example) = example_with_missing(named_command(command, argv), &error) {
                // The usage has the same placeholders as the error.
                error.remove(ContextKind::Usage);
                set_tip(&mut error, format!("for example `{example}`"));
            }
        }
        _ => {}
    }
    error
}

/// Whether a similar subcommand exists besides `help`, which is similar to many a word.
fn has_similar_subcommand(error: &clap::Error) -> bool {
    context_text(error, ContextKind::SuggestedSubcommand).is_some_and(|name| name != "help")
}

/// The first example of the command's help, if it has the options that are missing.
fn example_with_missing(named: &Command, error: &clap::Error) -> Option<String> {
    let missing = context_text(error, ContextKind::InvalidArg)?;
    let examples = named.get_before_help()?.to_string();
    let example = examples
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("peername "))?;
    missing
        .split(' ')
        .filter(|word| word.starts_with("--"))
        .all(|option| example.contains(option))
        .then(|| example.to_owned())
}

/// The list of subcommands.
fn tip_for_subcommand(command: &Command, argv: &[OsString]) -> String {
    let names = subcommands(command, argv).join(", ");
    let without = if named_command(command, argv).get_name() == "doctor" {
        "; without one it checks what `peername proxy` needs"
    } else {
        ""
    };
    format!("the subcommands are {names}{without}")
}

fn set_tip(error: &mut clap::Error, tip: String) {
    let tips = ContextValue::StyledStrs(vec![tip.into()]);
    error.insert(ContextKind::Suggested, tips);
}

/// The reason why an option can't be combined with others, and what to do instead.
fn tip_for_conflict(named: &Command, error: &clap::Error) -> Option<String> {
    let options = [ContextKind::InvalidArg, ContextKind::PriorArg]
        .into_iter()
        .filter_map(|kind| context_text(error, kind))
        .collect::<Vec<_>>()
        .join(" ");
    let words: Vec<_> = options.split(' ').collect();
    let tip = if words.contains(&"--admin") && named.get_name() == "doctor" {
        "with --admin it only asks the running command whether it is ready; without --admin it checks the others, and with \
         --config FILE those of the file with its admin"
    } else if options.contains("--config") {
        "write the option as a key in a table of the file; docs/config.md has the tables"
    } else if options.contains("--auto-passthrough") {
        "with --auto-passthrough a client decides which of its requests are not seen, so nothing could be denied; \
         --passthrough HOST names such a host"
    } else if words.contains(&"--connect") {
        "with --connect the program is a client: it sends headers, and accepts nothing to which this option applies"
    } else if options.contains("[CMD]") {
        "write --unit NAME in place of `-- CMD`: the unit has a program of its own"
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
        return tip_for_operand(named, argv, unknown)
            .or_else(|| tip_for_second_value(named, argv, unknown))
            .or_else(|| tip_for_word(named, argv, unknown));
    };
    let synonym = server_option(named, name).or_else(|| plural_option(named, name));
    let owners = owners(command, argv, name);
    if synonym.is_none() && !owners.is_empty() {
        return Some(format!("it is an option of {}", owners.join(", ")));
    }
    let option = synonym.or_else(|| shorter_option(named, name))?;
    Some(format!("`peername {}` has --{option}", named.get_name()))
}

/// The tip for a word that other programs take, whatever option is before it.
fn tip_for_operand(named: &Command, argv: &[OsString], word: &str) -> Option<String> {
    let tip = match named.get_name() {
        "intercept" if examine(OsStr::new(word), &search_path()).is_ok() => {
            "it runs no program; `peername jail --allow RULE -- CMD` does"
        }
        "forward" if word.parse::<SocketAddr>().is_ok() && !is_given(argv, "to") => {
            "write --listen before the address to listen on, and --to before that of the server"
        }
        _ => return None,
    };
    Some(tip.to_owned())
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
    named
        .get_arguments()
        .filter(|arg| matches!(arg.get_action(), ArgAction::Append))
        .find(|arg| arg.get_long() == Some(option))
        .is_some_and(|arg| may_be_value(arg, word))
        .then(|| format!("repeat the option: --{option} {}", quote(word)))
}

/// Whether a word may be a value of a repeatable option: a port is none, and no network has a port.
fn may_be_value(arg: &Arg, word: &str) -> bool {
    let names = arg.get_value_names().unwrap_or_default();
    let is_network = names.iter().any(|name| name.as_str() == "NETWORK");
    word.parse::<u16>().is_err() && !(is_network && word.parse::<SocketAddr>().is_ok())
}

/// The tip for a word that belongs to an option, or is a file to read from standard input.
fn tip_for_word(named: &Command, argv: &[OsString], word: &str) -> Option<String> {
    let option = match (named.get_name(), word) {
        ("peername", "-v") => return Some("-V prints the version".to_owned()),
        (_, word) if word.starts_with('-') => return None,
        ("decode", word) if is_given(argv, "hex") => {
            return Some(format!(
                "it reads standard input: echo {} | peername decode --hex",
                quote(word)
            ));
        }
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
pub(super) fn named_command<'a>(command: &'a Command, argv: &[OsString]) -> &'a Command {
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
