//! The options of a parsed command line.

use std::ffi::{OsStr, OsString};

/// Options by name, in the order in which they were given. A switch has an empty value.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::compat) struct ParsedOptions(Vec<(&'static str, OsString)>);

impl ParsedOptions {
    pub(in crate::compat) fn add(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.0.push((name, value.into()));
    }

    /// Removes every occurrence of the option.
    pub(in crate::compat) fn remove(&mut self, name: &str) {
        self.0.retain(|(given, _)| *given != name);
    }

    /// The value in effect, which is the last one.
    pub(in crate::compat) fn last(&self, name: &str) -> Option<&OsStr> {
        self.all(name).last()
    }

    pub(in crate::compat) fn all(&self, name: &str) -> impl Iterator<Item = &OsStr> {
        self.0
            .iter()
            .filter(move |(given, _)| *given == name)
            .map(|(_, value)| value.as_os_str())
    }

    pub(in crate::compat) fn has(&self, name: &str) -> bool {
        self.last(name).is_some()
    }

    /// Parses the last value.
    ///
    /// # Errors
    ///
    /// The value's text, if `parse` returns `None`.
    pub(in crate::compat) fn parsed<T>(
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
