//! The options of a parsed command line.

use std::ffi::{OsStr, OsString};

/// Options by name, in the order in which they were given. A switch has an empty value.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::compat) struct ParsedOptions {
    options: Vec<ParsedOption>,
    /// The number of words that are neither options nor their values. Only the rules of getopt_long(3) count them.
    pub(in crate::compat) other_words: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct ParsedOption {
    name: &'static str,
    value: OsString,
}

impl ParsedOptions {
    pub(in crate::compat) fn add(&mut self, name: &'static str, value: impl Into<OsString>) {
        let value = value.into();
        self.options.push(ParsedOption { name, value });
    }

    /// Removes every occurrence of the option.
    pub(in crate::compat) fn remove(&mut self, name: &str) {
        self.options.retain(|option| option.name != name);
    }

    /// The value in effect, which is the last.
    pub(in crate::compat) fn last(&self, name: &str) -> Option<&OsStr> {
        self.all(name).last()
    }

    pub(in crate::compat) fn all(&self, name: &str) -> impl Iterator<Item = &OsStr> {
        self.options
            .iter()
            .filter(move |option| option.name == name)
            .map(|option| option.value.as_os_str())
    }

    pub(in crate::compat) fn has(&self, name: &str) -> bool {
        self.last(name).is_some()
    }

    /// Parses the last value.
    ///
    /// # Errors
    ///
    /// The value's text, if `parse` returns `None`.
    pub(in crate::compat) fn parse_last<T>(
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

#[cfg(test)]
impl std::fmt::Display for ParsedOptions {
    /// `name=value` for each option, then `+2` for two other words.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let options = self
            .options
            .iter()
            .map(|option| format!("{}={}", option.name, option.value.display()));
        let others = (self.other_words > 0).then(|| format!("+{}", self.other_words));
        f.write_str(&options.chain(others).collect::<Vec<_>>().join(" "))
    }
}
