//! Reads a table of options key by key: the parser by itself stops at the first error of a table, and loses the position
//! where options are flattened.

use std::path::Path;

use schemars::{JsonSchema, schema_for};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, Error};

use super::origin::{Origin, Table};

/// An error at a byte of the file.
pub(super) struct Mistake {
    pub(super) at: usize,
    why: String,
}

/// Reads a table. With any mistake, the result is the default.
pub(super) fn read_options<'t, T>(table: DeTable<'t>, mistakes: &mut Vec<Mistake>) -> T
where
    T: Deserialize<'t> + Default + JsonSchema,
{
    let schema = schema_for!(T);
    let properties = schema.get("properties").and_then(|all| all.as_object());
    let known: Vec<&str> = properties
        .into_iter()
        .flat_map(|all| all.keys().map(String::as_str))
        .collect();
    let before = mistakes.len();
    for (key, value) in &table {
        let name = key.get_ref().as_ref();
        if !known.contains(&name) {
            mistakes.push(Mistake::unknown_key(key.span().start, name, &known));
            continue;
        }
        let alone = DeTable::from_iter([(key.clone(), value.clone())]);
        let alone = Deserializer::from(Spanned::new(value.span(), alone));
        if let Err(error) = T::deserialize(alone) {
            mistakes.push(Mistake::from_parser(&error));
        }
    }
    if mistakes.len() > before {
        return T::default();
    }
    T::deserialize(Deserializer::from(Spanned::new(0..0, table))).unwrap_or_else(|error| {
        mistakes.push(Mistake::from_parser(&error));
        T::default()
    })
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
        Some(Table {
            options: read_options(table, mistakes),
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
