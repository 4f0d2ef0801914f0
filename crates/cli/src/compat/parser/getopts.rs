//! Parses options by the rules of the `getopts` crate, as udppp uses it.
//!
//! Like getopt_long(3), but long names can't be abbreviated and an option may be given only once. Other words are
//! allowed and ignored.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::parsed_options::ParsedOptions;
use super::short_options::{self, ShortOption};

/// An option: its long name, its letter, and whether it is required.
#[derive(Clone, Copy, Debug)]
pub(in crate::compat) struct Opt {
    pub(in crate::compat) name: &'static str,
    pub(in crate::compat) letter: u8,
    pub(in crate::compat) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::compat) enum Kind {
    /// Required, with a value.
    Required,
    /// Optional, with a value.
    Optional,
    /// Optional, without a value.
    Switch,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::compat) enum Error {
    #[error("Argument to option '{0}' missing")]
    NoArgument(&'static str),
    #[error("Unrecognized option: '{0}'")]
    Unrecognized(String),
    #[error("Required option '{0}' missing")]
    Missing(&'static str),
    #[error("Option '{0}' given more than once")]
    Twice(&'static str),
    #[error("Option '{0}' does not take an argument")]
    Unexpected(&'static str),
}

impl From<short_options::Error> for Error {
    fn from(error: short_options::Error) -> Self {
        match error {
            short_options::Error::Unknown(letter) => Self::Unrecognized(letter.into()),
            short_options::Error::NoValue(_, name) => Self::NoArgument(name),
        }
    }
}

pub(in crate::compat) fn parse(opts: &[Opt], args: &[OsString]) -> Result<ParsedOptions, Error> {
    let mut given = ParsedOptions::default();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"--" => break,
            [b'-', b'-', long @ ..] => long_option(opts, long, &mut words, &mut given)?,
            [b'-', cluster @ ..] if !cluster.is_empty() => {
                short_options::read(
                    cluster,
                    |letter| meaning(opts, letter),
                    &mut words,
                    &mut given,
                )?;
            }
            _ => {}
        }
    }
    for opt in opts {
        if given.all(opt.name).nth(1).is_some() {
            return Err(Error::Twice(opt.name));
        }
        if opt.kind == Kind::Required && !given.has(opt.name) {
            return Err(Error::Missing(opt.name));
        }
    }
    Ok(given)
}

fn long_option<'a>(
    opts: &[Opt],
    word: &[u8],
    words: &mut impl Iterator<Item = &'a OsString>,
    given: &mut ParsedOptions,
) -> Result<(), Error> {
    let mut parts = word.splitn(2, |&byte| byte == b'=');
    let name = parts.next().unwrap_or_default();
    let attached = parts.next().map(|value| OsString::from_vec(value.to_vec()));
    let opt = opts.iter().find(|opt| opt.name.as_bytes() == name);
    let text = || String::from_utf8_lossy(name).into_owned();
    let opt = opt.ok_or_else(|| Error::Unrecognized(text()))?;
    match (opt.kind, attached) {
        (Kind::Switch, None) => given.add(opt.name, ""),
        (Kind::Switch, Some(_)) => return Err(Error::Unexpected(opt.name)),
        (_, Some(value)) => given.add(opt.name, value),
        (_, None) => given.add(opt.name, words.next().ok_or(Error::NoArgument(opt.name))?),
    }
    Ok(())
}

fn meaning(opts: &[Opt], letter: u8) -> Option<ShortOption> {
    let opt = opts.iter().find(|opt| opt.letter == letter)?;
    Some(ShortOption {
        name: opt.name,
        value: opt.kind != Kind::Switch,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::parser::expected::{given, words};

    const OPTS: &[Opt] = &[
        Opt {
            name: "host",
            letter: b'h',
            kind: Kind::Required,
        },
        Opt {
            name: "bind",
            letter: b'b',
            kind: Kind::Optional,
        },
        Opt {
            name: "slient",
            letter: b's',
            kind: Kind::Switch,
        },
        Opt {
            name: "proxyprotocol",
            letter: b'p',
            kind: Kind::Switch,
        },
    ];

    fn parsed(line: &str) -> Result<ParsedOptions, Error> {
        parse(OPTS, &words(line))
    }

    #[test]
    fn values_attached_apart_and_behind_an_equals_sign() {
        for line in ["-hx", "-h x", "--host=x", "--host x", "-h x other"] {
            assert_eq!(parsed(line), given(&[("host", "x")]), "{line}");
        }
    }

    #[test]
    fn clusters() {
        let all = [("slient", ""), ("proxyprotocol", ""), ("host", "x")];
        assert_eq!(parsed("-sphx"), given(&all));
        assert_eq!(parsed("-sph x"), given(&all));
    }

    #[test]
    fn errors() {
        assert_eq!(parsed("-s"), Err(Error::Missing("host")));
        assert_eq!(parsed("-hx -hy"), Err(Error::Twice("host")));
        assert_eq!(
            parsed("-hx --hos=y"),
            Err(Error::Unrecognized("hos".into()))
        );
        assert_eq!(parsed("-hx -q"), Err(Error::Unrecognized("q".into())));
        assert_eq!(parsed("-hx --slient=1"), Err(Error::Unexpected("slient")));
        assert_eq!(parsed("-s -h"), Err(Error::NoArgument("host")));
    }
}
