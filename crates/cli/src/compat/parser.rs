//! The parser of the other programs' command lines, by the rules of the library that each program uses. udppp's library is the
//! crate `getopts`, which `udppp.rs` calls itself.

mod parsed_options;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::{iter, slice};

pub(super) use parsed_options::ParsedOptions;

/// The library whose rules apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParserRules {
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
    pub(super) words: &'static [&'static str],
    value: Value,
}

/// Whether an option has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// Never: the option is a switch.
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

/// Parses the options; leaves out a switch that Go's syntax sets to false.
pub(super) fn parse(
    rules: ParserRules,
    opts: &[Opt],
    args: &[OsString],
) -> Result<ParsedOptions, Error> {
    let mut parsed = ParsedOptions::default();
    let mut words = args.iter().peekable();
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        let short = bytes.strip_prefix(b"-");
        let long = bytes.strip_prefix(b"--");
        match (rules, long, short) {
            (ParserRules::GoFlag, _, None | Some(b"" | b"-")) => break,
            (ParserRules::GetoptLong, Some(b""), _) => {
                parsed.other_words += words.count();
                break;
            }
            (ParserRules::GetoptLong, _, None | Some(b"")) => parsed.other_words += 1,
            (ParserRules::GetoptLong, None, Some(letters)) => {
                add_letters(opts, letters, &mut words, &mut parsed)?;
            }
            (ParserRules::Argwerk, _, None) => {
                return Err(wrong("unsupported argument: ", bytes, ""));
            }
            (_, long, Some(short)) => {
                let option = long.unwrap_or(short);
                add_option(rules, opts, word, option, &mut words, &mut parsed)?;
            }
        }
    }
    Ok(parsed)
}

/// Adds the option of a whole `word`, which is `option` without its dashes.
fn add_option(
    rules: ParserRules,
    opts: &[Opt],
    word: &OsStr,
    option: &[u8],
    words: &mut Words<'_>,
    parsed: &mut ParsedOptions,
) -> Result<(), Error> {
    let word = word.as_bytes();
    let (name, attached) = split_value(rules, option);
    if rules == ParserRules::GoFlag && matches!(name, [] | [b'-' | b'=', ..]) {
        return Err(wrong("bad flag syntax: ", word, ""));
    }
    let opt = find(rules, opts, word, name)?;
    let name = opt.name().as_bytes();
    match (opt.value, attached) {
        (Value::None, None) => parsed.add(opt.name(), ""),
        (Value::None, Some(value)) => match rules {
            ParserRules::GoFlag => set_switch(parsed, opt.name(), value)?,
            ParserRules::GetoptLong => {
                return Err(wrong("option '--", name, "' doesn't allow an argument"));
            }
            ParserRules::Argwerk => return Err(wrong("unsupported switch: ", word, "")),
        },
        (Value::Needed | Value::Optional, Some(value)) => {
            parsed.add(opt.name(), OsStr::from_bytes(value));
        }
        (Value::Needed, None) => match words.next() {
            Some(value) => parsed.add(opt.name(), value),
            None => {
                return Err(match rules {
                    ParserRules::GoFlag => wrong("flag needs an argument: -", name, ""),
                    ParserRules::GetoptLong => wrong("option '--", name, "' requires an argument"),
                    ParserRules::Argwerk => wrong("switch ", word, ": missing its value"),
                });
            }
        },
        (Value::Optional, None) => {
            if let Some(value) = words.next_if(|word| !word.as_bytes().starts_with(b"-")) {
                parsed.add(opt.name(), value);
            }
        }
    }
    Ok(())
}

/// Adds the options of a cluster of letters. A value that is not attached is the next of the `words`.
fn add_letters(
    opts: &[Opt],
    letters: &[u8],
    words: &mut Words<'_>,
    parsed: &mut ParsedOptions,
) -> Result<(), Error> {
    let mut letters = letters;
    while let Some((letter, rest)) = letters.split_first() {
        let letter = slice::from_ref(letter);
        let opt = opts
            .iter()
            .find(|opt| opt.words.iter().any(|word| word.as_bytes() == letter))
            .ok_or_else(|| wrong("invalid option -- '", letter, "'"))?;
        if opt.value == Value::None {
            parsed.add(opt.name(), "");
            letters = rest;
            continue;
        }
        let value = match rest {
            [] => words.next().cloned(),
            attached => Some(OsString::from_vec(attached.to_vec())),
        };
        let value = value.ok_or_else(|| wrong("option requires an argument -- '", letter, "'"))?;
        parsed.add(opt.name(), value);
        break;
    }
    Ok(())
}

/// Splits off the value after `=`. By Go's rules, the first byte is part of the name, even if it is `=`.
fn split_value(rules: ParserRules, option: &[u8]) -> (&[u8], Option<&[u8]>) {
    let first = usize::from(rules == ParserRules::GoFlag);
    let equals = option.iter().skip(first).position(|&byte| byte == b'=');
    let split = equals.and_then(|at| option.split_at_checked(at + first));
    match split {
        Some((name, value)) => (name, value.get(1..)),
        None => (option, None),
    }
}

/// Finds the option by its name, or with getopt_long(3) by an unambiguous prefix.
fn find<'a>(
    rules: ParserRules,
    opts: &'a [Opt],
    word: &[u8],
    name: &[u8],
) -> Result<&'a Opt, Error> {
    let exact = opts
        .iter()
        .find(|opt| opt.long_names(rules).any(|word| word.as_bytes() == name));
    if let Some(opt) = exact {
        return Ok(opt);
    }
    match rules {
        ParserRules::GoFlag if matches!(name, b"h" | b"help") => Err(Error::Help),
        ParserRules::GoFlag => Err(wrong("flag provided but not defined: -", name, "")),
        ParserRules::Argwerk => Err(wrong("unsupported switch: ", word, "")),
        ParserRules::GetoptLong => {
            let mut candidates = opts.iter().filter(|opt| {
                opt.long_names(rules)
                    .any(|word| word.as_bytes().starts_with(name))
            });
            match (candidates.next(), candidates.next()) {
                (Some(opt), None) => Ok(opt),
                (Some(_), Some(_)) => Err(wrong("option '--", name, "' is ambiguous")),
                (None, _) => Err(wrong("unrecognized option '--", name, "'")),
            }
        }
    }
}

/// Sets a switch by its value in Go's syntax. `false` removes earlier settings, because the last setting counts.
fn set_switch(parsed: &mut ParsedOptions, name: &'static str, value: &[u8]) -> Result<(), Error> {
    match value {
        b"1" | b"t" | b"T" | b"true" | b"TRUE" | b"True" => parsed.add(name, ""),
        b"0" | b"f" | b"F" | b"false" | b"FALSE" | b"False" => parsed.remove(name),
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

    /// The spellings that a whole word can have after its dashes. With getopt_long(3), letters are not among them.
    fn long_names(&self, rules: ParserRules) -> impl Iterator<Item = &'static str> {
        self.words
            .iter()
            .copied()
            .filter(move |word| rules != ParserRules::GetoptLong || word.len() > 1)
    }

    #[cfg(test)]
    pub(super) fn has_value(&self) -> bool {
        self.value != Value::None
    }

    pub(super) fn name(&self) -> &'static str {
        self.words.first().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
