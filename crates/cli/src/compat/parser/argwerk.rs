//! Parses options by the rules of the `argwerk` crate, as mmproxy-rs uses it, and accepts Go's syntax, too.
//!
//! An option and its value are two words; there are no clusters, and no other words. Go's syntax
//! (`-mark 1`, `--mark=1`) was an error in mmproxy-rs. It is accepted here, because people move
//! between the two programs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::parsed_options::ParsedOptions;

/// An option, by all its spellings without dashes; the first is its name.
#[derive(Clone, Copy, Debug)]
pub(in crate::compat) struct Opt {
    pub(in crate::compat) words: &'static [&'static str],
    pub(in crate::compat) value: Value,
}

/// Whether an option has the next word as its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::compat) enum Value {
    /// Never: it is a switch.
    None,
    /// Always.
    Needed,
    /// The next word, unless that looks like another option; without a value, the option has no effect.
    Optional,
}

/// Why parsing ended.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::compat) enum Error {
    #[error("unsupported argument: {0}")]
    Argument(String),
    #[error("unsupported switch: {0}")]
    Switch(String),
    #[error("switch {0}: missing its value")]
    NoValue(String),
}

pub(in crate::compat) fn parse(opts: &[Opt], args: &[OsString]) -> Result<ParsedOptions, Error> {
    let mut given = ParsedOptions::default();
    let mut words = args.iter().peekable();
    while let Some(word) = words.next() {
        let text = || word.to_string_lossy().into_owned();
        let (name, attached) = split(word).ok_or_else(|| Error::Argument(text()))?;
        let opt = opts
            .iter()
            .find(|opt| opt.words.iter().any(|word| word.as_bytes() == name));
        let opt = opt.ok_or_else(|| Error::Switch(text()))?;
        let name = opt.words.first().copied().unwrap_or_default();
        match (opt.value, attached) {
            (Value::None, None) => given.add(name, ""),
            (Value::None, Some(_)) => return Err(Error::Switch(text())),
            (Value::Needed | Value::Optional, Some(value)) => given.add(name, value),
            (Value::Needed, None) => match words.next() {
                Some(value) => given.add(name, value),
                None => return Err(Error::NoValue(text())),
            },
            (Value::Optional, None) => {
                if let Some(value) = words.next_if(|word| !word.as_bytes().starts_with(b"-")) {
                    given.add(name, value);
                }
            }
        }
    }
    Ok(given)
}

/// Splits a word into the option's name without its dashes, and the value behind `=`.
fn split(word: &OsStr) -> Option<(&[u8], Option<OsString>)> {
    let bytes = word.as_bytes().strip_prefix(b"-")?;
    let bytes = bytes.strip_prefix(b"-").unwrap_or(bytes);
    match bytes.iter().position(|&byte| byte == b'=') {
        Some(at) => {
            let (name, value) = bytes.split_at(at);
            let value = value.get(1..).unwrap_or_default().to_vec();
            Some((name, Some(OsString::from_vec(value))))
        }
        None => Some((bytes, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::parser::expected::{given, words};

    const OPTS: &[Opt] = &[
        Opt {
            words: &["mark", "m"],
            value: Value::Needed,
        },
        Opt {
            words: &["listen-addr", "l"],
            value: Value::Optional,
        },
        Opt {
            words: &["help", "h"],
            value: Value::None,
        },
    ];

    fn parsed(line: &str) -> Result<ParsedOptions, Error> {
        parse(OPTS, &words(line))
    }

    #[test]
    fn value_is_the_next_word_or_attached_as_in_go() {
        for line in ["-m 7", "--mark 7", "-mark 7", "--mark=7", "-mark=7", "-m=7"] {
            assert_eq!(parsed(line), given(&[("mark", "7")]), "{line}");
        }
    }

    #[test]
    fn an_optional_value_is_no_switch() {
        assert_eq!(parsed("-l -h"), given(&[("help", "")]));
        assert_eq!(
            parsed("-l x -h"),
            given(&[("listen-addr", "x"), ("help", "")])
        );
        assert_eq!(parsed("-m -h"), given(&[("mark", "-h")]));
    }

    #[test]
    fn errors() {
        assert_eq!(parsed("x"), Err(Error::Argument("x".into())));
        assert_eq!(parsed("-x"), Err(Error::Switch("-x".into())));
        assert_eq!(parsed("-m7"), Err(Error::Switch("-m7".into())));
        assert_eq!(parsed("--help=x"), Err(Error::Switch("--help=x".into())));
        assert_eq!(parsed("-m"), Err(Error::NoValue("-m".into())));
    }
}
