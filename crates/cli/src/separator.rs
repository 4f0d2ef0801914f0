//! The `--` between options and the program that a command runs.

use std::borrow::Cow;
use std::ffi::OsString;

/// Says where `--` belongs in the words of a command, if the word that clap does not know is the program.
pub(crate) fn explain_missing(command: &str, words: &[OsString], unknown: &str) -> Option<String> {
    if unknown.starts_with('-') {
        return None;
    }
    let words: Vec<Cow<'_, str>> = words.iter().map(|word| word.to_string_lossy()).collect();
    let at = words.iter().position(|word| word == unknown)?;
    if words.iter().skip(at).any(|word| word == "--") {
        return Some(format!(
            "{unknown:?} is neither an option nor behind `--`: repeat the option for it, or quote it with the word before it"
        ));
    }
    let (options, program) = words.split_at_checked(at)?;
    let options: String = options.iter().map(|word| format!("{word} ")).collect();
    Some(format!(
        "the program and its arguments follow `--`:\npeername {command} {options}-- {}",
        program.join(" ")
    ))
}
