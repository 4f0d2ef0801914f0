//! Parses options of one letter, as getopt(3) does: one word may contain several, the last of
//! them with its value, attached or as the next word.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::parsed_options::ParsedOptions;

/// The option that a letter names.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortOption {
    pub(super) name: &'static str,
    pub(super) value: bool,
}

#[derive(Debug)]
pub(super) enum Error {
    /// No option has this letter.
    Unknown(char),
    /// The option's value is missing.
    NoValue(char, &'static str),
}

/// Adds the options of a `cluster` of letters; a value that is not attached is the next of the `words`.
pub(super) fn read<'a>(
    cluster: &[u8],
    meaning: impl Fn(u8) -> Option<ShortOption>,
    words: &mut impl Iterator<Item = &'a OsString>,
    given: &mut ParsedOptions,
) -> Result<(), Error> {
    let mut cluster = cluster;
    while let [letter, rest @ ..] = cluster {
        let shown = char::from(*letter);
        let ShortOption { name, value } = meaning(*letter).ok_or(Error::Unknown(shown))?;
        if !value {
            given.add(name, "");
            cluster = rest;
            continue;
        }
        let value = match rest {
            [] => words.next().cloned(),
            attached => Some(OsString::from_vec(attached.to_vec())),
        };
        given.add(name, value.ok_or(Error::NoValue(shown, name))?);
        break;
    }
    Ok(())
}
