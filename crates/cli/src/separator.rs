//! The `--` between options and the program that a command runs.

use std::ffi::OsString;

use peername_observe::shell::command_line;

/// Says where `--` belongs in the words of a command, if the word that clap does not know is the program.
pub(crate) fn explain_missing(command: &str, words: &[OsString], unknown: &str) -> Option<String> {
    if unknown.starts_with('-') {
        return None;
    }
    let at = words.iter().position(|word| word == unknown)?;
    if words.iter().skip(at).any(|word| word == "--") {
        return Some(format!(
            "{unknown:?} is neither an option nor behind `--`: repeat the option for it, or quote it with the word before it"
        ));
    }
    let (options, program) = words.split_at_checked(at)?;
    Some(format!(
        "the program and its arguments follow `--`:\n{}",
        with_separator(command, options, program)
    ))
}

/// The command with `--` between its options and the program.
pub(crate) fn with_separator(command: &str, options: &[OsString], program: &[OsString]) -> String {
    let begin = ["peername", command].map(OsString::from);
    let separator = OsString::from("--");
    let words = begin.iter().chain(options).chain([&separator]);
    command_line(words.chain(program))
}
