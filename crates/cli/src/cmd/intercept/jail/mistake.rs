//! Typical mistakes on the command line of `peername jail`, and what to type instead.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::separator;

/// What to do about words that clap refuses; `None` where clap's own words say it.
pub(crate) fn explain_mistake(words: &[OsString], error: &clap::Error) -> Option<String> {
    match error.kind() {
        ErrorKind::UnknownArgument => {
            explain_word(words, &text_of(error, ContextKind::InvalidArg)?)
        }
        ErrorKind::ArgumentConflict => explain_learn(error),
        _ => None,
    }
}

/// A word that is neither an option nor behind `--`.
fn explain_word(words: &[OsString], unknown: &str) -> Option<String> {
    let texts: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let at = texts.iter().position(|word| word == unknown)?;
    let before = at.checked_sub(1).and_then(|at| texts.get(at));
    if let (Some(host), Ok(port)) = (before, unknown.parse::<u16>()) {
        return Some(format!(
            "the port {port} stands behind a space: write it behind the host and a colon, as in {host}:{port}"
        ));
    }
    separator::explain_missing("jail", words, unknown)
}

fn explain_learn(error: &clap::Error) -> Option<String> {
    let pair = [ContextKind::InvalidArg, ContextKind::PriorArg].map(|kind| text_of(error, kind));
    let [Some(one), Some(other)] = pair else {
        return None;
    };
    let names_learn = one.contains("--learn") || other.contains("--learn");
    names_learn.then(|| {
        "--learn allows everything, and lists it: it goes without --allow, --deny, --check, --check-list and --ask\n\
         `peername jail --learn FILE -- CMD` adds to a FILE that exists; `peername jail --allow @FILE -- CMD` applies it"
            .to_owned()
    })
}

fn text_of(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => Some(texts.join(" ")),
        _ => None,
    }
}
