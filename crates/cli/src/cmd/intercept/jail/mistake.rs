//! Typical mistakes on the command line of `peername jail`, and what to type instead.

use std::ffi::OsString;

use clap::error::{ContextKind, ErrorKind};

use crate::cmd::intercept::explain_rule;
use crate::separator::{self, context_text};

/// Explains how to correct words that clap refuses; `None` if clap's own message is enough.
pub(crate) fn explain_mistake(words: &[OsString], error: &clap::Error) -> Option<String> {
    match error.kind() {
        ErrorKind::UnknownArgument => {
            explain_word(words, &context_text(error, ContextKind::InvalidArg)?)
        }
        ErrorKind::ArgumentConflict => explain_learn(error),
        ErrorKind::MissingRequiredArgument => separator::explain_no_program("jail", words, error),
        ErrorKind::ValueValidation => explain_rule(error),
        _ => None,
    }
}

/// Explains a word that is neither an option nor after `--`.
fn explain_word(words: &[OsString], unknown: &str) -> Option<String> {
    let texts: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let at = texts.iter().position(|word| word == unknown)?;
    let before = at.checked_sub(1).and_then(|at| texts.get(at));
    let host = before.and_then(|before| host_in(before));
    if let (Some(host), Ok(port)) = (host, unknown.parse::<u16>()) {
        return Some(format!(
            "the port {port} follows a space: write it after the host and a colon, as in {host}:{port}"
        ));
    }
    separator::explain_missing("jail", words, unknown)
}

/// The part of a word that may be a host: all of it, or the value of an option, as in `--allow=a.test`.
fn host_in(word: &str) -> Option<&str> {
    if word.starts_with('-') {
        return word.split_once('=').map(|(_, value)| value);
    }
    Some(word)
}

/// Explains a conflict of `--learn` with another option.
fn explain_learn(error: &clap::Error) -> Option<String> {
    let pair =
        [ContextKind::InvalidArg, ContextKind::PriorArg].map(|kind| context_text(error, kind));
    let [Some(option), Some(prior)] = pair else {
        return None;
    };
    let names_learn = option != prior && (option.contains("--learn") || prior.contains("--learn"));
    names_learn.then(|| {
        "--learn allows everything, and lists it: it goes without --allow, --deny, --check, --check-list, --ask and --ask-list\n\
         `peername jail --learn FILE -- CMD` adds to a FILE that exists; `peername jail --allow @FILE -- CMD` applies it"
            .to_owned()
    })
}
