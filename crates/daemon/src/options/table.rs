//! Reads tables of the configuration file, each as words of a command line.

mod contradictions;
mod entry;

use std::any::TypeId;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command};
use peername_observe::escape::escape_controls;
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::clap_error::{is_about_value, reason};
use super::file_path::resolve_relative_path;
use super::given::{Given, Word, command, option_word};
use super::known_keys::{
    KnownTable, file_options, find_option, is_table, unknown_key, unknown_table,
};
use super::origin::{Lines, Mistake, Origin, TableKey};
use crate::usage::UsageError;
use contradictions::{contradictions, required_options};
use entry::{Entry, Unread, option};

/// The options of one table, or of a command line.
#[derive(Clone, Debug)]
pub struct Table<T> {
    /// The options.
    pub given: Given<T>,
    /// The origin of the options, for errors.
    pub origin: Origin,
    unread: Unread,
}

/// Reads the tables of a file.
pub struct Tables<'t> {
    path: &'t Path,
    text: &'t str,
    lines: Lines,
    known_tables: Vec<KnownTable>,
    mistakes: Vec<Mistake>,
    old_names: BTreeMap<OldName, usize>,
}

/// A key that is an older name of an option.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OldName {
    key: String,
    option: String,
}

impl<T> Table<T> {
    /// Wraps the options of a command line.
    pub fn from_command_line(given: Given<T>) -> Self {
        Self {
            given,
            origin: Origin::CommandLine,
            unread: Unread::default(),
        }
    }

    /// The options.
    pub fn options(&self) -> &T {
        &self.given.options
    }

    /// Whether some keys could not be read.
    pub fn is_partial(&self) -> bool {
        !self.unread.0.is_empty()
    }

    /// Returns errors of the options with their position, but not those that may follow from a key that could not be read.
    pub fn located(&self, UsageError(errors): &UsageError) -> impl Iterator<Item = String> {
        errors
            .lines()
            .filter(|line| !self.unread.explains(line))
            .map(|line| self.origin.locate(line))
    }
}

impl<'t> Tables<'t> {
    /// Reads tables of this file. `known_tables` are all tables that the file may have, and its top: the error about a key in
    /// the wrong table names the right one.
    pub fn new(path: &'t Path, text: &'t str, known_tables: Vec<KnownTable>) -> Self {
        Self {
            path,
            text,
            lines: Lines::of(text),
            known_tables,
            mistakes: Vec::new(),
            old_names: BTreeMap::new(),
        }
    }

    /// Returns a warning for each older name of a key, with the line of its first use.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.old_names.iter().map(|(OldName { key, option }, at)| {
            let path = escape_controls(&self.path.to_string_lossy());
            let line = self.lines.line_of(*at);
            format!("{path}, line {line}, {key}: an older name of `{option}`; both work")
        })
    }

    /// Parses the text. After a syntax error nothing else is read, because further errors may follow from it.
    pub fn parse(&mut self) -> DeTable<'t> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        // Of three errors or more, only the first is reported: a file of another format has one in each line.
        let reported = match errors.as_slice() {
            [first, .., _, _] => std::slice::from_ref(first),
            all => all,
        };
        let text = self.text;
        let mistakes = reported.iter().map(|error| Mistake::of_syntax(error, text));
        self.mistakes.extend(mistakes);
        if !errors.is_empty() {
            return DeTable::new();
        }
        table.into_inner()
    }

    /// Reads the keys at the top.
    pub fn read_top<T: clap::Args>(&mut self, table: DeTable<'t>) -> Given<T> {
        self.read("", 0, table).given
    }

    /// Reads a table, if the file has it; `name` is as a file writes it.
    pub fn read_table<T: clap::Args>(
        &mut self,
        name: &'static str,
        value: Option<Spanned<DeValue<'t>>>,
    ) -> Option<Table<T>> {
        let value = value?;
        let at = value.span().start;
        let DeValue::Table(table) = value.into_inner() else {
            self.refuse(at, format!("use {name}"));
            return None;
        };
        Some(self.read(name, at, table))
    }

    /// Reads an array of tables, if the file has it.
    pub fn read_array<T: clap::Args>(
        &mut self,
        name: &'static str,
        value: Option<Spanned<DeValue<'t>>>,
    ) -> Vec<Table<T>> {
        let Some(value) = value else {
            return Vec::new();
        };
        let at = value.span().start;
        let DeValue::Array(tables) = value.into_inner() else {
            self.refuse(at, format!("use {name}"));
            return Vec::new();
        };
        tables
            .into_iter()
            .filter_map(|table| self.read_table(name, Some(table)))
            .collect()
    }

    /// Adds an error at a byte.
    pub fn refuse(&mut self, at: usize, why: String) {
        self.mistakes.push(Mistake { at, key: None, why });
    }

    /// Returns all errors, in the order of the file.
    pub fn errors(mut self) -> Vec<String> {
        self.mistakes.sort_by_key(|mistake| mistake.at);
        self.mistakes
            .iter()
            .map(|mistake| mistake.locate(self.path, &self.lines))
            .collect()
    }

    /// Reads the options. Those with a mistake have their defaults.
    fn read<T: clap::Args>(
        &mut self,
        name: &'static str,
        at: usize,
        table: DeTable<'t>,
    ) -> Table<T> {
        let command = command::<T>();
        let (entries, mut unread) = self.read_keys(&command, table);
        for (entry, mistake) in contradictions(&command, &entries, &unread) {
            unread.0.push(option(entry.arg));
            self.mistakes.push(mistake);
        }
        // What requires an option that was not read is not read either.
        let dependent: Vec<_> = entries
            .iter()
            .filter(|entry| {
                !unread.0.is_empty() && unread.contains_any(&required_options(&command, entry))
            })
            .map(|entry| option(entry.arg))
            .collect();
        unread.0.extend(dependent);
        let keys = entries
            .iter()
            .map(|entry| TableKey {
                option: option(entry.arg),
                key: entry.key.clone(),
                line: self.lines.line_of(entry.at),
            })
            .collect();
        for entry in &entries {
            if option(entry.arg) != entry.key {
                let name = OldName {
                    key: entry.key.clone(),
                    option: option(entry.arg),
                };
                self.old_names.entry(name).or_insert(entry.at);
            }
        }
        let words = entries
            .into_iter()
            .filter(|entry| !unread.contains(&option(entry.arg)))
            .flat_map(|entry| entry.words)
            .collect();
        let given = Given::parse(words).unwrap_or_else(|error| {
            // An error that only the options together cause, and no single value or pair of options.
            self.refuse(at, reason(error));
            Given::default()
        });
        Table {
            given,
            origin: Origin::Table {
                path: self.path.to_owned(),
                line: self.lines.line_of(at),
                name,
                keys,
            },
            unread,
        }
    }

    /// Reads each key by itself, in the order of the file.
    fn read_keys<'c>(
        &mut self,
        command: &'c Command,
        table: DeTable<'t>,
    ) -> (Vec<Entry<'c>>, Unread) {
        let mut keys: Vec<_> = table.into_iter().collect();
        keys.sort_by_key(|(key, _)| key.span().start);
        let mut entries = Vec::new();
        let mut unread = Unread::default();
        let mut has_unknown = false;
        for (key, value) in keys {
            let (at, key) = (key.span().start, key.into_inner().into_owned());
            let Some(arg) = find_option(command, &key) else {
                self.mistakes.push(if is_table(value.get_ref()) {
                    unknown_table(at, key, &self.known_tables)
                } else {
                    unknown_key(at, key, command, &self.known_tables)
                });
                has_unknown = true;
                continue;
            };
            match read_value(command, arg, &key, value, self.path) {
                Ok(words) => entries.push(Entry {
                    key,
                    at,
                    arg,
                    words,
                }),
                Err(wrong) => {
                    self.mistakes.extend(wrong);
                    unread.0.push(option(arg));
                }
            }
        }
        if has_unknown {
            // Each absent option may be what an unknown key was meant to be.
            let is_absent = |name: &String| !entries.iter().any(|entry| option(entry.arg) == *name);
            unread
                .0
                .extend(file_options(command).map(option).filter(is_absent));
        }
        (entries, unread)
    }
}

/// Returns the words that a key stands for, if each of its values is valid by itself.
fn read_value(
    command: &Command,
    arg: &Arg,
    key: &str,
    value: Spanned<DeValue<'_>>,
    file: &Path,
) -> Result<Vec<Word>, Vec<Mistake>> {
    let mistake = |at: usize, why: String| Mistake {
        at,
        key: Some(key.to_owned()),
        why,
    };
    let word = |value: Option<OsString>| Word {
        option: arg.get_id().to_string(),
        text: option_word(arg, value),
    };
    let at = value.span().start;
    let wrong = |why: &str| vec![mistake(at, why.to_owned())];
    let values = match (arg.get_action(), value.into_inner()) {
        (ArgAction::SetTrue, DeValue::Boolean(is_set)) => {
            return Ok(is_set.then(|| word(None)).into_iter().collect());
        }
        (ArgAction::SetTrue, _) => return Err(wrong("use true or false, without quotes")),
        (ArgAction::Count, DeValue::Integer(count)) => {
            return match integer(&count).and_then(|count| u8::try_from(count).ok()) {
                Some(count) => Ok(vec![word(None); usize::from(count)]),
                None => Err(wrong("use a number from 0 to 255")),
            };
        }
        (ArgAction::Count, _) => return Err(wrong("use a number, without quotes")),
        (ArgAction::Append, DeValue::Array(all)) if all.is_empty() && !is_denial(arg) => {
            return Err(wrong("an empty list: name some, or leave the key out"));
        }
        (ArgAction::Append, DeValue::Array(all)) => all.into_iter().collect(),
        (_, DeValue::Array(_)) => return Err(wrong("use one value, no list")),
        (_, value) => vec![Spanned::new(at..at, value)],
    };
    let mut words = Vec::new();
    let mut mistakes = Vec::new();
    for value in values {
        let at = value.span().start;
        let text = match scalar(value.get_ref()) {
            Some(text) if has_type(arg, value.get_ref()) => text,
            _ => {
                mistakes.push(mistake(at, type_advice(arg).to_owned()));
                continue;
            }
        };
        let word = word(Some(resolve_relative_path(file, arg, text)));
        let parsed = command.clone().try_get_matches_from([&word.text]);
        match parsed.err().filter(is_about_value) {
            Some(error) => mistakes.push(mistake(at, reason(error))),
            None => words.push(word),
        }
    }
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    Ok(words)
}

/// Says which type a value, or each value of a list, must have.
fn type_advice(arg: &Arg) -> &'static str {
    match arg.get_action() {
        _ if is_path(arg) => "use a string",
        _ if is_number(arg) => "use a number, without quotes",
        ArgAction::Append => "use a list of strings",
        _ => "use a string or a number",
    }
}

/// Whether an empty list means what a missing key does: it denies nothing. Any other is refused: a template may have made it
/// empty by accident, and a missing key may mean a default, or no restriction.
fn is_denial(arg: &Arg) -> bool {
    arg.get_long().is_some_and(|name| name.starts_with("deny"))
}

/// Whether a string or an integer is of the option's type: most options take either.
fn has_type(arg: &Arg, value: &DeValue<'_>) -> bool {
    match value {
        DeValue::String(_) => !is_number(arg),
        _ => !is_path(arg),
    }
}

/// Whether the option takes strings only.
pub(super) fn is_path(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<PathBuf>()
}

/// Whether the option takes integers only.
pub(super) fn is_number(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<usize>()
}

/// Returns the text of a string or of an integer.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(number) => integer(number).map(|number| number.to_string()),
        _ => None,
    }
}

fn integer(number: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// A file may have 4 MiB.
    #[test]
    fn many_errors_of_a_large_file_are_located_at_once() {
        let text = "x=1\n".repeat(1 << 20);
        let mut tables = Tables::new(Path::new("file"), &text, Vec::new());
        for at in (0..text.len()).step_by(512) {
            tables.refuse(at, "wrong".to_owned());
        }
        let started = Instant::now();
        let errors = tables.errors();
        assert!(started.elapsed() < Duration::from_secs(10));
        assert_eq!(errors.first().expect("one"), "file, line 1: wrong");
        assert_eq!(errors.get(1).expect("another"), "file, line 129: wrong");
    }
}
