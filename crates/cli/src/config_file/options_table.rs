//! Reads a table of options key by key: the parser by itself stops at the first error of a table, and loses the position
//! where options are flattened.

use std::path::Path;

use schemars::{JsonSchema, schema_for};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue, Deserializer, Error};

use super::origin::{Origin, Table};

/// An error at a byte of the file.
pub(super) struct Mistake {
    pub(super) at: usize,
    why: String,
}

/// Reads a table. Returns the options, with the keys of mistakes, whose options have their defaults.
pub(super) fn read_options<'t, T>(
    mut table: DeTable<'t>,
    mistakes: &mut Vec<Mistake>,
) -> (T, Vec<String>)
where
    T: Deserialize<'t> + Default + JsonSchema,
{
    let schema = schema_for!(T);
    let properties = schema.get("properties").and_then(|all| all.as_object());
    let known: Vec<&str> = properties
        .into_iter()
        .flat_map(|all| all.keys().map(String::as_str))
        .collect();
    let mut unread = Vec::new();
    for (key, value) in &table {
        let name = key.get_ref().as_ref();
        if !known.contains(&name) {
            mistakes.push(Mistake::unknown_key(key.span().start, name, &known));
            unread.push(name.to_owned());
            continue;
        }
        let errors = errors_of::<T>(key, value);
        if !errors.is_empty() {
            mistakes.extend(errors.iter().map(Mistake::from_parser));
            unread.push(name.to_owned());
        }
    }
    let has_unknown = unread.iter().any(|key| !known.contains(&key.as_str()));
    if has_unknown {
        // Each key that is absent may be what an unknown one was meant to be.
        let absent = known.iter().filter(|key| !table.contains_key(**key));
        unread.extend(absent.map(|key| (*key).to_owned()));
    }
    for key in &unread {
        table.remove(key.as_str());
    }
    let options = T::deserialize(Deserializer::from(Spanned::new(0..0, table)));
    let options = options.unwrap_or_else(|error| {
        mistakes.push(Mistake::from_parser(&error));
        T::default()
    });
    (options, unread)
}

/// The errors of one key: of a list, those of each of its values.
fn errors_of<'t, T: Deserialize<'t>>(
    key: &Spanned<DeString<'t>>,
    value: &Spanned<DeValue<'t>>,
) -> Vec<Error> {
    let error_of = |value: Spanned<DeValue<'t>>| {
        let span = value.span();
        let alone = DeTable::from_iter([(key.clone(), value)]);
        T::deserialize(Deserializer::from(Spanned::new(span, alone))).err()
    };
    let Some(whole) = error_of(value.clone()) else {
        return Vec::new();
    };
    let list = value.get_ref().as_array().into_iter().flatten();
    let of_one = |one: &Spanned<DeValue<'t>>| {
        let list = DeValue::Array(DeArray::from_iter([one.clone()]));
        error_of(Spanned::new(one.span(), list))
    };
    let of_each: Vec<_> = list.filter_map(of_one).collect();
    if of_each.is_empty() {
        vec![whole]
    } else {
        of_each
    }
}

/// One table, or an array of tables, that is not read yet.
pub(super) struct Tables<'t> {
    name: &'static str,
    value: Spanned<DeValue<'t>>,
    path: &'t Path,
    text: &'t str,
}

impl<'t> Tables<'t> {
    pub(super) fn new(
        name: &'static str,
        value: Spanned<DeValue<'t>>,
        (path, text): (&'t Path, &'t str),
    ) -> Self {
        Self {
            name,
            value,
            path,
            text,
        }
    }

    /// The error that this build has no command that reads the table.
    #[cfg(not(feature = "intercept"))]
    pub(super) fn left_out(&self, feature: &str) -> Mistake {
        Mistake {
            at: self.value.span().start,
            why: format!("this build lacks `{feature}`: build with --features {feature}"),
        }
    }

    pub(super) fn read_array<T>(self, mistakes: &mut Vec<Mistake>) -> Vec<Table<T>>
    where
        T: Deserialize<'t> + Default + JsonSchema,
    {
        let at = self.value.span().start;
        let DeValue::Array(tables) = self.value.into_inner() else {
            mistakes.push(Mistake::not_a_table(at, self.name));
            return Vec::new();
        };
        let one = |value| Tables { value, ..self };
        let read = |value| one(value).read_single(mistakes);
        tables.into_iter().filter_map(read).collect()
    }

    pub(super) fn read_single<T>(self, mistakes: &mut Vec<Mistake>) -> Option<Table<T>>
    where
        T: Deserialize<'t> + Default + JsonSchema,
    {
        let at = self.value.span().start;
        let DeValue::Table(table) = self.value.into_inner() else {
            mistakes.push(Mistake::not_a_table(at, self.name));
            return None;
        };
        let line = line_of(self.text, at);
        let (options, unread) = read_options(table, mistakes);
        Some(Table {
            options,
            unread,
            origin: Origin::Table {
                place: format!("{}, line {line}", self.path.display()),
                name: self.name,
            },
        })
    }
}

impl Mistake {
    pub(super) fn from_parser(error: &Error) -> Self {
        Self {
            at: error.span().map_or(0, |span| span.start),
            why: error.message().to_owned(),
        }
    }

    fn not_a_table(at: usize, name: &str) -> Self {
        let why = format!("use {name}");
        Self { at, why }
    }

    fn unknown_key(at: usize, name: &str, known: &[&str]) -> Self {
        let known: Vec<_> = known.iter().map(|key| format!("`{key}`")).collect();
        let known = known.join(", ");
        let why = format!("unknown field `{name}`, expected one of {known}");
        Self { at, why }
    }

    /// The error with file, line and key.
    pub(super) fn locate(&self, path: &Path, text: &str) -> String {
        let (path, why, line) = (path.display(), &self.why, line_of(text, self.at));
        match key_of(text, self.at) {
            Some(key) => format!("{path}, line {line}, {key}: {why}"),
            None => format!("{path}, line {line}: {why}"),
        }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or_default();
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}

/// The key that the value at this offset belongs to. A list may begin some lines above.
fn key_of(text: &str, at: usize) -> Option<&str> {
    let line = text.lines().take(line_of(text, at));
    let table = |line: &&str| !line.trim_start().starts_with('[');
    let keys = line.collect::<Vec<_>>().into_iter().rev();
    let (key, _) = keys
        .take_while(table)
        .find_map(|line| line.split_once('='))?;
    Some(key.trim())
}
