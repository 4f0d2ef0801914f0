//! What a command line said, once its parser has taken it apart.

use std::ffi::{OsStr, OsString};

/// Options by name, in the order in which they were given. A switch has an empty value.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Given(Vec<(&'static str, OsString)>);

impl Given {
    pub(super) fn add(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.0.push((name, value.into()));
    }

    /// Takes back every mention.
    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|(given, _)| *given != name);
    }

    /// The value that counts: the last one.
    pub(super) fn last(&self, name: &str) -> Option<&OsStr> {
        self.all(name).last()
    }

    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &OsStr> {
        self.0
            .iter()
            .filter(move |(given, _)| *given == name)
            .map(|(_, value)| value.as_os_str())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.last(name).is_some()
    }

    /// The last value as text that `parse` understands; `Err` holds the text that it does not.
    pub(super) fn parsed<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.last(name) else {
            return Ok(None);
        };
        match value.to_str().and_then(parse) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(value.to_string_lossy().into_owned()),
        }
    }
}

/// For the parsers' tests.
#[cfg(test)]
pub(super) mod expected {
    use super::{Given, OsString};

    pub(in super::super) fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    pub(in super::super) fn given<E>(pairs: &[(&'static str, &str)]) -> Result<Given, E> {
        let mut given = Given::default();
        for (name, value) in pairs {
            given.add(name, *value);
        }
        Ok(given)
    }
}
