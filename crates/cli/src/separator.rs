//! The `--` between options and the program that a command runs.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use peername_observe::shell::command_line;

/// Explains where `--` belongs in the words of a command, if the word that clap does not know is the program.
pub(crate) fn explain_missing(command: &str, words: &[OsString], unknown: &str) -> Option<String> {
    if unknown.starts_with('-') {
        return None;
    }
    let at = words.iter().position(|word| word == unknown)?;
    if words.iter().skip(at).any(|word| word == "--") {
        return Some(format!(
            "{unknown:?} is neither an option nor after `--`: repeat the option for it, or quote it with the word before it"
        ));
    }
    let (options, program) = words.split_at_checked(at)?;
    Some(format!(
        "the program and its arguments follow `--`:\n{}",
        with_separator(command, options, program)
    ))
}

/// Explains where the program belongs, if nothing else is missing.
pub(crate) fn explain_no_program(
    command: &str,
    words: &[OsString],
    error: &clap::Error,
) -> Option<String> {
    let missing = context_text(error, ContextKind::InvalidArg)?;
    let is_program = missing.contains("<CMD>") && missing.split_whitespace().count() == 1;
    if !is_program {
        return None;
    }
    let options: Vec<_> = words.iter().filter(|word| *word != "--").cloned().collect();
    let command = with_separator(command, &options, &["CMD".into()]);
    Some(format!("the program to run follows `--`:\n{command}"))
}

/// The arguments or values that an error is about.
pub(crate) fn context_text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => Some(texts.join(" ")),
        _ => None,
    }
}

/// The command with `--` between its options and the program.
fn with_separator(command: &str, options: &[OsString], program: &[OsString]) -> String {
    let subcommand = ["peername", command].map(OsString::from);
    let separator = OsString::from("--");
    command_line(
        subcommand
            .iter()
            .chain(options)
            .chain([&separator])
            .chain(program),
    )
}
