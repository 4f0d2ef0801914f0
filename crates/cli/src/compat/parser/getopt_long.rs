//! Parses options by the rules of the GNU C library's getopt_long(3).
//!
//! Short options may be combined in one word, the last of them with its value attached; long ones may be
//! abbreviated as long as they are unambiguous. Other words may be anywhere. `--` ends the options.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::parsed_options::ParsedOptions;

/// An option: its name, its other long names, its letter, and whether it takes a value.
#[derive(Clone, Copy, Debug)]
pub(in crate::compat) struct Opt {
    pub(in crate::compat) name: &'static str,
    pub(in crate::compat) aliases: &'static [&'static str],
    pub(in crate::compat) letter: u8,
    pub(in crate::compat) value: bool,
}

/// The error that getopt_long(3) prints before it returns `?`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::compat) enum Error {
    #[error("unrecognized option '--{0}'")]
    Unrecognized(String),
    #[error("option '--{0}' is ambiguous")]
    Ambiguous(String),
    #[error("option '--{0}' doesn't allow an argument")]
    NoArgument(&'static str),
    #[error("option '--{0}' requires an argument")]
    LongNeedsArgument(&'static str),
    #[error("invalid option -- '{0}'")]
    Invalid(char),
    #[error("option requires an argument -- '{0}'")]
    NeedsArgument(char),
}

/// Parses the options; returns them and the number of other words.
pub(in crate::compat) fn parse(
    opts: &[Opt],
    args: &[OsString],
) -> Result<(ParsedOptions, usize), Error> {
    let mut given = ParsedOptions::default();
    let mut others = 0;
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"--" => return Ok((given, others + words.count())),
            [b'-', b'-', long @ ..] => {
                let (opt, value) = long_option(opts, long)?;
                let value = match (opt.value, value) {
                    (false, None) => OsString::new(),
                    (false, Some(_)) => return Err(Error::NoArgument(opt.name)),
                    (true, Some(value)) => OsString::from_vec(value.to_vec()),
                    (true, None) => match words.next() {
                        Some(value) => value.clone(),
                        None => return Err(Error::LongNeedsArgument(opt.name)),
                    },
                };
                given.add(opt.name, value);
            }
            [b'-', cluster @ ..] if !cluster.is_empty() => {
                short_options(opts, cluster, &mut words, &mut given)?;
            }
            _ => others += 1,
        }
    }
    Ok((given, others))
}

/// Adds the options of a `cluster` of letters; a value that is not attached is the next of the `words`.
fn short_options<'a>(
    opts: &[Opt],
    cluster: &[u8],
    words: &mut impl Iterator<Item = &'a OsString>,
    given: &mut ParsedOptions,
) -> Result<(), Error> {
    let mut cluster = cluster;
    while let [letter, rest @ ..] = cluster {
        let shown = char::from(*letter);
        let opt = opts.iter().find(|opt| opt.letter == *letter);
        let opt = opt.ok_or(Error::Invalid(shown))?;
        if !opt.value {
            given.add(opt.name, "");
            cluster = rest;
            continue;
        }
        let value = match rest {
            [] => words.next().cloned(),
            attached => Some(OsString::from_vec(attached.to_vec())),
        };
        given.add(opt.name, value.ok_or(Error::NeedsArgument(shown))?);
        break;
    }
    Ok(())
}

/// The option that a long word names: by its whole name, or by an unambiguous prefix.
fn long_option<'a, 'b>(
    opts: &'a [Opt],
    word: &'b [u8],
) -> Result<(&'a Opt, Option<&'b [u8]>), Error> {
    let (name, value) = match word.iter().position(|&byte| byte == b'=') {
        Some(at) => (word.get(..at).unwrap_or_default(), word.get(at + 1..)),
        None => (word, None),
    };
    let names = |opt: &'a Opt| std::iter::once(opt.name).chain(opt.aliases.iter().copied());
    let whole = opts
        .iter()
        .find(|opt| names(opt).any(|whole| whole.as_bytes() == name));
    if let Some(opt) = whole {
        return Ok((opt, value));
    }
    let mut begun = opts
        .iter()
        .filter(|opt| names(opt).any(|whole| whole.as_bytes().starts_with(name)));
    let text = || String::from_utf8_lossy(name).into_owned();
    match (begun.next(), begun.next()) {
        (Some(opt), None) => Ok((opt, value)),
        (Some(_), Some(_)) => Err(Error::Ambiguous(text())),
        (None, _) => Err(Error::Unrecognized(text())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::parser::expected::{self, words};

    const OPTS: &[Opt] = &[
        Opt {
            name: "mark",
            aliases: &[],
            letter: b'm',
            value: true,
        },
        Opt {
            name: "target-v4",
            aliases: &["to-v4"],
            letter: b'4',
            value: true,
        },
        Opt {
            name: "target-v6",
            aliases: &[],
            letter: b'6',
            value: true,
        },
        Opt {
            name: "quiet",
            aliases: &[],
            letter: b'q',
            value: false,
        },
        Opt {
            name: "verbose",
            aliases: &[],
            letter: b'v',
            value: false,
        },
    ];

    fn parsed(line: &str) -> Result<(ParsedOptions, usize), Error> {
        parse(OPTS, &words(line))
    }

    fn given(
        pairs: &[(&'static str, &str)],
        others: usize,
    ) -> Result<(ParsedOptions, usize), Error> {
        Ok((expected::given::<Error>(pairs)?, others))
    }

    #[test]
    fn values_attached_apart_and_behind_an_equals_sign() {
        for line in [
            "-m123",
            "-m 123",
            "--mark=123",
            "--mark 123",
            "--ma=123",
            "--m 123",
        ] {
            assert_eq!(parsed(line), given(&[("mark", "123")], 0), "{line}");
        }
        assert_eq!(
            parsed("-m=1"),
            given(&[("mark", "=1")], 0),
            "not with a letter"
        );
        assert_eq!(parsed("-m -q"), given(&[("mark", "-q")], 0));
    }

    #[test]
    fn clusters() {
        let all = [("quiet", ""), ("verbose", ""), ("mark", "7")];
        assert_eq!(parsed("-qvm7"), given(&all, 0));
        assert_eq!(parsed("-qvm 7"), given(&all, 0));
    }

    #[test]
    fn other_words_anywhere() {
        assert_eq!(parsed("a -q b"), given(&[("quiet", "")], 2));
        assert_eq!(parsed("-q -- -v"), given(&[("quiet", "")], 1));
        assert_eq!(parsed("-"), given(&[], 1));
    }

    #[test]
    fn abbreviations_must_be_unambiguous() {
        assert_eq!(parsed("--target 1"), Err(Error::Ambiguous("target".into())));
        assert_eq!(
            parsed("--to=1"),
            given(&[("target-v4", "1")], 0),
            "an alias"
        );
        assert_eq!(parsed("--target-v4 1"), given(&[("target-v4", "1")], 0));
    }

    #[test]
    fn errors() {
        assert_eq!(
            parsed("--nothing"),
            Err(Error::Unrecognized("nothing".into()))
        );
        assert_eq!(parsed("--quiet=1"), Err(Error::NoArgument("quiet")));
        assert_eq!(parsed("--mark"), Err(Error::LongNeedsArgument("mark")));
        assert_eq!(parsed("-x"), Err(Error::Invalid('x')));
        assert_eq!(parsed("-qm"), Err(Error::NeedsArgument('m')));
    }
}
