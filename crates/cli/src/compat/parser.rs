//! The parser of the other programs' command lines, by the rules of the library that each program uses. (udppp's is the
//! crate `getopts`, which `udppp.rs` uses.)

mod parsed_options;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::{iter, slice};

pub(super) use parsed_options::ParsedOptions;

/// The library with the rules that apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    /// Go's package `flag`: one dash or two, the value behind `=` or in the next word, no clusters. A switch has a value
    /// only behind `=`. The first word that is no flag, or `--`, ends the flags; what follows is ignored.
    GoFlag,
    /// getopt_long(3) of the GNU C library: letters may be combined in one word, the last of them with its value attached;
    /// long options may be abbreviated as long as they are unambiguous. Other words may be anywhere. `--` ends the options.
    GetoptLong,
    /// The crate `argwerk`, as mmproxy-rs uses it: an option and its value are two words; there are no clusters, and no
    /// other words. Go's syntax (`-mark 1`, `--mark=1`) was an error in mmproxy-rs. It is accepted here, because people
    /// move between the two programs.
    Argwerk,
}

/// An option, by all its spellings without dashes: its name, and its other names and letters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opt {
    words: &'static [&'static str],
    value: Value,
}

/// Whether an option has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// Never: it is a switch.
    None,
    /// Always.
    Needed,
    /// The next word, unless that looks like another option; without a value, the option has no effect.
    Optional,
}

/// Why parsing ended.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// `-h` or `-help` of Go, when no flag has that name.
    #[error("flag: help requested")]
    Help,
    /// The text of the library.
    #[error("{0}")]
    Wrong(String),
}

type Words<'a> = iter::Peekable<slice::Iter<'a, OsString>>;

/// Parses the options given; leaves out a switch that Go's syntax sets to false.
pub(super) fn parse(rules: Rules, opts: &[Opt], args: &[OsString]) -> Result<ParsedOptions, Error> {
    let mut given = ParsedOptions::default();
    let mut words = args.iter().peekable();
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        let short = bytes.strip_prefix(b"-");
        let long = bytes.strip_prefix(b"--");
        match (rules, long, short) {
            (Rules::GoFlag, _, None | Some(b"" | b"-")) => break,
            (Rules::GetoptLong, Some(b""), _) => {
                given.others += words.count();
                break;
            }
            (Rules::GetoptLong, _, None | Some(b"")) => given.others += 1,
            (Rules::GetoptLong, None, Some(letters)) => {
                add_letters(opts, letters, &mut words, &mut given)?;
            }
            (Rules::Argwerk, _, None) => {
                return Err(wrong("unsupported argument: ", bytes, ""));
            }
            (_, long, Some(short)) => {
                let option = long.unwrap_or(short);
                add_option(rules, opts, word, option, &mut words, &mut given)?;
            }
        }
    }
    Ok(given)
}

/// Adds the option of a whole `word`, which is `option` without its dashes.
fn add_option(
    rules: Rules,
    opts: &[Opt],
    word: &OsStr,
    option: &[u8],
    words: &mut Words<'_>,
    given: &mut ParsedOptions,
) -> Result<(), Error> {
    let word = word.as_bytes();
    let (name, attached) = split_value(rules, option);
    if rules == Rules::GoFlag && matches!(name, [] | [b'-' | b'=', ..]) {
        return Err(wrong("bad flag syntax: ", word, ""));
    }
    let opt = find(rules, opts, word, name)?;
    let name = opt.name().as_bytes();
    match (opt.value, attached) {
        (Value::None, None) => given.add(opt.name(), ""),
        (Value::None, Some(value)) => match rules {
            Rules::GoFlag => set_switch(given, opt.name(), value)?,
            Rules::GetoptLong => {
                return Err(wrong("option '--", name, "' doesn't allow an argument"));
            }
            Rules::Argwerk => return Err(wrong("unsupported switch: ", word, "")),
        },
        (Value::Needed | Value::Optional, Some(value)) => {
            given.add(opt.name(), OsStr::from_bytes(value));
        }
        (Value::Needed, None) => match words.next() {
            Some(value) => given.add(opt.name(), value),
            None => {
                return Err(match rules {
                    Rules::GoFlag => wrong("flag needs an argument: -", name, ""),
                    Rules::GetoptLong => wrong("option '--", name, "' requires an argument"),
                    Rules::Argwerk => wrong("switch ", word, ": missing its value"),
                });
            }
        },
        (Value::Optional, None) => {
            if let Some(value) = words.next_if(|word| !word.as_bytes().starts_with(b"-")) {
                given.add(opt.name(), value);
            }
        }
    }
    Ok(())
}

/// Adds the options of a cluster of letters; a value that is not attached is the next of the `words`.
fn add_letters(
    opts: &[Opt],
    letters: &[u8],
    words: &mut Words<'_>,
    given: &mut ParsedOptions,
) -> Result<(), Error> {
    let mut letters = letters;
    while let Some((letter, rest)) = letters.split_first() {
        let letter = slice::from_ref(letter);
        let opt = opts
            .iter()
            .find(|opt| opt.words.iter().any(|word| word.as_bytes() == letter));
        let opt = opt.ok_or_else(|| wrong("invalid option -- '", letter, "'"))?;
        if opt.value == Value::None {
            given.add(opt.name(), "");
            letters = rest;
            continue;
        }
        let value = match rest {
            [] => words.next().cloned(),
            attached => Some(OsString::from_vec(attached.to_vec())),
        };
        let value = value.ok_or_else(|| wrong("option requires an argument -- '", letter, "'"))?;
        given.add(opt.name(), value);
        break;
    }
    Ok(())
}

/// Splits off the value behind `=`. With Go's rules, the first byte is part of the name, even if it is `=`.
fn split_value(rules: Rules, option: &[u8]) -> (&[u8], Option<&[u8]>) {
    let first = usize::from(rules == Rules::GoFlag);
    let equals = option.iter().skip(first).position(|&byte| byte == b'=');
    let split = equals.and_then(|at| option.split_at_checked(at + first));
    match split {
        Some((name, value)) => (name, value.get(1..)),
        None => (option, None),
    }
}

/// The option of this name: the whole of it, or with getopt_long(3) an unambiguous prefix.
fn find<'a>(rules: Rules, opts: &'a [Opt], word: &[u8], name: &[u8]) -> Result<&'a Opt, Error> {
    let whole = opts
        .iter()
        .find(|opt| opt.whole_words(rules).any(|word| word.as_bytes() == name));
    if let Some(opt) = whole {
        return Ok(opt);
    }
    match rules {
        Rules::GoFlag if matches!(name, b"h" | b"help") => Err(Error::Help),
        Rules::GoFlag => Err(wrong("flag provided but not defined: -", name, "")),
        Rules::Argwerk => Err(wrong("unsupported switch: ", word, "")),
        Rules::GetoptLong => {
            let mut begun = opts.iter().filter(|opt| {
                opt.whole_words(rules)
                    .any(|word| word.as_bytes().starts_with(name))
            });
            match (begun.next(), begun.next()) {
                (Some(opt), None) => Ok(opt),
                (Some(_), Some(_)) => Err(wrong("option '--", name, "' is ambiguous")),
                (None, _) => Err(wrong("unrecognized option '--", name, "'")),
            }
        }
    }
}

/// A switch that Go's syntax sets to false removes an earlier one, since of several settings the last counts.
fn set_switch(given: &mut ParsedOptions, name: &'static str, value: &[u8]) -> Result<(), Error> {
    match value {
        b"1" | b"t" | b"T" | b"true" | b"TRUE" | b"True" => given.add(name, ""),
        b"0" | b"f" | b"F" | b"false" | b"FALSE" | b"False" => given.remove(name),
        value => {
            let value = String::from_utf8_lossy(value);
            let text = format!("invalid boolean value {value:?} for -{name}: parse error");
            return Err(Error::Wrong(text));
        }
    }
    Ok(())
}

fn wrong(before: &str, quoted: &[u8], after: &str) -> Error {
    Error::Wrong(format!(
        "{before}{}{after}",
        String::from_utf8_lossy(quoted)
    ))
}

impl Opt {
    pub(super) const fn switch(words: &'static [&'static str]) -> Self {
        let value = Value::None;
        Self { words, value }
    }

    pub(super) const fn with_value(words: &'static [&'static str]) -> Self {
        let value = Value::Needed;
        Self { words, value }
    }

    pub(super) const fn with_optional_value(words: &'static [&'static str]) -> Self {
        let value = Value::Optional;
        Self { words, value }
    }

    /// Its spellings behind two dashes: with getopt_long(3) letters have one.
    fn whole_words(&self, rules: Rules) -> impl Iterator<Item = &'static str> {
        self.words
            .iter()
            .copied()
            .filter(move |word| rules != Rules::GetoptLong || word.len() > 1)
    }

    fn name(&self) -> &'static str {
        self.words.first().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
