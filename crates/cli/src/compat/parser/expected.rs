//! Expected values for the parsers' tests.

use std::ffi::OsString;

use super::parsed_options::ParsedOptions;

pub(super) fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

pub(super) fn given<E>(pairs: &[(&'static str, &str)]) -> Result<ParsedOptions, E> {
    let mut given = ParsedOptions::default();
    for (name, value) in pairs {
        given.add(name, *value);
    }
    Ok(given)
}
