//! Parses flags by the rules of Go's `flag` package.
//!
//! One dash or two, the value behind `=` or in the next word, no clusters. A switch has a value
//! only behind `=`. The first word that is no flag, or `--`, ends the flags; what follows is ignored.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::parsed_options::ParsedOptions;

/// A flag's name, and whether it is a switch.
#[derive(Clone, Copy, Debug)]
pub(in crate::compat) struct Flag {
    pub(in crate::compat) name: &'static str,
    pub(in crate::compat) switch: bool,
}

/// Why parsing ended, in the texts of the package.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::compat) enum Error {
    /// `-h` or `-help`, when no flag has that name.
    #[error("flag: help requested")]
    Help,
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    #[error("flag provided but not defined: -{0}")]
    Undefined(String),
    #[error("flag needs an argument: -{0}")]
    NeedsArgument(&'static str),
    #[error("invalid boolean value {value:?} for -{name}: parse error")]
    Boolean { name: &'static str, value: String },
}

/// Parses the flags given; leaves out a switch that was set to false.
pub(in crate::compat) fn parse(flags: &[Flag], args: &[OsString]) -> Result<ParsedOptions, Error> {
    let mut given = ParsedOptions::default();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let Some(body) = body(word.as_bytes()) else {
            break;
        };
        let (name, value) = split(body);
        if name.is_empty() || name.starts_with(b"-") || name.starts_with(b"=") {
            return Err(Error::Syntax(word.to_string_lossy().into_owned()));
        }
        let flag = flags.iter().find(|flag| flag.name.as_bytes() == name);
        let Some(flag) = flag else {
            return Err(match name {
                b"h" | b"help" => Error::Help,
                name => Error::Undefined(String::from_utf8_lossy(name).into_owned()),
            });
        };
        if flag.switch {
            set(&mut given, flag.name, value)?;
            continue;
        }
        let value = value.map(|value| OsString::from_vec(value.to_vec()));
        let value = value.or_else(|| words.next().cloned());
        given.add(flag.name, value.ok_or(Error::NeedsArgument(flag.name))?);
    }
    Ok(given)
}

/// Parses an integer as `flag.Int` does: `0x`, `0o`, `0b`, a leading 0 for octal, `_` between digits.
pub(in crate::compat) fn integer(text: &str) -> Option<i64> {
    let (negative, magnitude) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = magnitude.to_ascii_lowercase();
    let (digits, radix) = match lower.as_bytes() {
        [b'0', b'x', ..] => (lower.get(2..)?, 16),
        [b'0', b'o', ..] => (lower.get(2..)?, 8),
        [b'0', b'b', ..] => (lower.get(2..)?, 2),
        [b'0', _, ..] => (lower.get(1..)?, 8),
        _ => (lower.as_str(), 10),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = i64::from_str_radix(&digits.replace('_', ""), radix).ok()?;
    Some(if negative { -magnitude } else { magnitude })
}

/// Strips the dashes of a flag; `None` for a word that is no flag.
fn body(word: &[u8]) -> Option<&[u8]> {
    match word {
        b"-" | b"--" => None,
        [b'-', b'-', body @ ..] | [b'-', body @ ..] => Some(body),
        _ => None,
    }
}

fn split(body: &[u8]) -> (&[u8], Option<&[u8]>) {
    // The first byte is part of the name, even if it is `=`.
    match body.iter().skip(1).position(|&byte| byte == b'=') {
        Some(at) => {
            let (name, rest) = body.split_at(at + 1);
            (name, rest.get(1..))
        }
        None => (body, None),
    }
}

/// A switch that is set to false removes an earlier one, since of several settings the last counts.
fn set(given: &mut ParsedOptions, name: &'static str, value: Option<&[u8]>) -> Result<(), Error> {
    match value {
        None | Some(b"1" | b"t" | b"T" | b"true" | b"TRUE" | b"True") => given.add(name, ""),
        Some(b"0" | b"f" | b"F" | b"false" | b"FALSE" | b"False") => given.remove(name),
        Some(value) => {
            let value = OsStr::from_bytes(value).to_string_lossy().into_owned();
            return Err(Error::Boolean { name, value });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::parser::expected::{given, words};

    const FLAGS: &[Flag] = &[
        Flag {
            name: "l",
            switch: false,
        },
        Flag {
            name: "v",
            switch: false,
        },
        Flag {
            name: "b",
            switch: true,
        },
    ];

    fn parsed(line: &str) -> Result<ParsedOptions, Error> {
        parse(FLAGS, &words(line))
    }

    #[test]
    fn flag_is_parsed_in_all_four_forms() {
        for line in ["-l x", "-l=x", "--l x", "--l=x"] {
            assert_eq!(parsed(line), given(&[("l", "x")]), "{line}");
        }
        assert_eq!(
            parsed("-l -v"),
            given(&[("l", "-v")]),
            "a value may look like a flag"
        );
        assert_eq!(parsed("-l=a=b"), given(&[("l", "a=b")]));
        assert_eq!(parsed("-l="), given(&[("l", "")]));
    }

    #[test]
    fn last_value_counts() {
        let given = parsed("-l x -l y").unwrap();
        assert_eq!(given.last("l"), Some(OsStr::new("y")));
    }

    #[test]
    fn the_first_other_word_ends_the_flags() {
        for line in ["-b other -l x", "-b - -l x", "-b -- -l x"] {
            assert_eq!(parsed(line), given(&[("b", "")]), "{line}");
        }
    }

    #[test]
    fn switches() {
        assert_eq!(parsed("-b=t"), given(&[("b", "")]));
        assert_eq!(parsed("-b -b=false"), given(&[]));
        assert_eq!(parsed("-b=0"), given(&[]));
        assert_eq!(
            parsed("-b true -l x"),
            given(&[("b", "")]),
            "`true` is another word"
        );
        let error = parsed("-b=yes").unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"invalid boolean value "yes" for -b: parse error"#
        );
    }

    #[test]
    fn errors() {
        assert_eq!(
            parsed("-v2"),
            Err(Error::Undefined("v2".into())),
            "no clusters"
        );
        assert_eq!(parsed("-l"), Err(Error::NeedsArgument("l")));
        assert_eq!(parsed("---l x"), Err(Error::Syntax("---l".into())));
        assert_eq!(parsed("-=x"), Err(Error::Syntax("-=x".into())));
        for line in ["-h", "--help", "-help=x"] {
            assert_eq!(parsed(line), Err(Error::Help), "{line}");
        }
    }

    #[test]
    fn integers() {
        let table = [
            ("123", Some(123)),
            ("0x7b", Some(123)),
            ("0o17", Some(15)),
            ("017", Some(15)),
            ("0b11", Some(3)),
            ("1_000", Some(1000)),
            ("+5", Some(5)),
            ("-5", Some(-5)),
            ("0", Some(0)),
            ("", None),
            ("--5", None),
            ("0x-5", None),
            ("five", None),
            ("08", None),
        ];
        for (text, value) in table {
            assert_eq!(integer(text), value, "{text}");
        }
    }
}
