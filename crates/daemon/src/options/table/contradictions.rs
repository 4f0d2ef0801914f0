//! Options of a table that exclude each other, or that have no effect without another one.

use clap::Command;

use super::entry::{Entry, Unread, option};
use crate::options::clap_error::missing_options;
use crate::options::given::conflicts;
use crate::options::origin::Mistake;

/// Finds the options that another one excludes, or that have no effect without another one, and says why.
pub(super) fn contradictions<'e, 'c>(
    command: &Command,
    entries: &'e [Entry<'c>],
    unread: &Unread,
) -> Vec<(&'e Entry<'c>, Mistake)> {
    let mut found = Vec::new();
    let given: Vec<_> = entries
        .iter()
        .filter(|entry| !entry.words.is_empty())
        .collect();
    let words = given.iter().flat_map(|entry| &entry.words);
    let together = command
        .clone()
        .try_get_matches_from(words.map(|word| &word.text));
    if together.is_ok() {
        return Vec::new();
    }
    for (index, &entry) in given.iter().enumerate() {
        let id = entry.arg.get_id().as_str();
        for earlier in given.iter().take(index) {
            let other = earlier.arg.get_id().as_str();
            if other == id {
                let why = format!("is `{}`, which is given, too", earlier.key);
                found.push((entry, entry.mistake(why)));
            } else if conflicts(command, other, id) {
                let why = format!("can't be combined with {}", earlier.key);
                found.push((entry, entry.mistake(why)));
            }
        }
        let missing: Vec<_> = required_options(command, entry)
            .into_iter()
            .filter(|name| !unread.contains(name))
            .filter(|name| !given.iter().any(|entry| option(entry.arg) == *name))
            .collect();
        if !missing.is_empty() {
            let why = format!("has no effect without {}", missing.join(" and "));
            found.push((entry, entry.mistake(why)));
        }
    }
    found
}

/// The options without which this one has no effect.
pub(super) fn required_options(command: &Command, entry: &Entry<'_>) -> Vec<String> {
    let words = entry.words.iter().map(|word| &word.text);
    match command.clone().try_get_matches_from(words) {
        Ok(_) => Vec::new(),
        Err(error) => missing_options(&error),
    }
}
