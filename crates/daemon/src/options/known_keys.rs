//! The tables that a file may have, and errors about keys that are unknown or in the wrong table.

use clap::{Arg, Command};
use toml::de::DeValue;

use super::clap_error::similar_option;
use super::given::command;
use super::origin::Mistake;

/// A table that a file may have, or the top of the file.
pub struct KnownTable {
    /// Its location for an error, as in "belongs in `[[listen]]`".
    location: String,
    /// Its name, as a file writes it; `None` for the top.
    pub(super) name: Option<&'static str>,
    /// What it is for, in the schema.
    pub(super) about: &'static str,
    pub(super) command: Command,
}

impl KnownTable {
    /// The top of the file, with these options.
    pub fn top<T: clap::Args>() -> Self {
        Self {
            location: "at the top, before the first table".to_owned(),
            name: None,
            about: "",
            command: command::<T>(),
        }
    }

    /// A table with these options; `name` is as a file writes it, with two brackets if there may be several such tables.
    pub fn table<T: clap::Args>(name: &'static str, about: &'static str) -> Self {
        Self {
            location: format!("in {name}"),
            name: Some(name),
            about,
            command: command::<T>(),
        }
    }
}

/// The options that a file may set.
pub(super) fn file_options(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|arg| arg.get_long().is_some() && !arg.is_hide_set())
}

/// Finds an option by its name or an alias.
pub(super) fn find_option<'c>(command: &'c Command, key: &str) -> Option<&'c Arg> {
    file_options(command).find(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(key) || aliases.contains(&key)
    })
}

/// The option that names the server behind this command or table, if `name` is what such an option is called elsewhere.
pub fn server_option<'c>(command: &'c Command, name: &str) -> Option<&'c str> {
    let is_synonym = SERVER_OPTIONS.contains(&name);
    file_options(command)
        .filter_map(Arg::get_long)
        .find(|option| is_synonym && SERVER_OPTIONS.contains(option))
}

/// Returns the error about a key that a table does not have; `command` has the options of that table. The error names the
/// table's own key for the same thing, or the tables that have the key, or else a similar key of the table.
pub(super) fn unknown_key(
    at: usize,
    key: String,
    command: &Command,
    known_tables: &[KnownTable],
) -> Mistake {
    let name = key.replace('_', "-");
    let locations: Vec<_> = known_tables
        .iter()
        .filter(|table| find_option(&table.command, &name).is_some())
        .map(|table| table.location.as_str())
        .collect();
    let meant = find_option(command, &name)
        .and_then(Arg::get_long)
        .or_else(|| server_option(command, &name))
        .map(str::to_owned)
        .or_else(|| suggest(command.clone(), &name).filter(|_| locations.is_empty()));
    let why = match (meant, locations.as_slice()) {
        (Some(meant), _) => format!("unknown key; did you mean `{meant}`?"),
        (None, []) => "unknown key; `peername config schema` prints all".to_owned(),
        (None, locations) if name == key => format!("belongs {}", locations.join(" or ")),
        (None, locations) => format!("`{name}` belongs {}", locations.join(" or ")),
    };
    Mistake {
        at,
        key: Some(key),
        why,
    }
}

/// Returns the error about a table that a file can't have. The error names a similar table, or else all tables.
pub(super) fn unknown_table(at: usize, key: String, known_tables: &[KnownTable]) -> Mistake {
    let tables: Vec<_> = known_tables.iter().filter_map(|table| table.name).collect();
    let keys = tables.iter().copied().map(key_of);
    let command = Command::new("")
        .no_binary_name(true)
        .args(keys.map(|key| Arg::new(key).long(key)));
    let similar = suggest(command, &key)
        .and_then(|similar| tables.iter().find(|table| key_of(table) == similar));
    let why = match similar {
        Some(table) => format!("unknown table; did you mean {table}?"),
        None => format!("unknown table; there are {}", tables.join(", ")),
    };
    Mistake {
        at,
        key: Some(key),
        why,
    }
}

/// Lets clap suggest an option that is similar to an unknown one. A name of one or two letters gets no suggestion, because
/// clap takes it for similar to every name with these letters.
fn suggest(command: Command, unknown: &str) -> Option<String> {
    if unknown.len() < 3 {
        return None;
    }
    let error = command
        .try_get_matches_from([format!("--{unknown}")])
        .err()?;
    similar_option(&error)
}

/// Returns the key of a table: `listen` for `[[listen]]`.
pub fn key_of(table: &'static str) -> &'static str {
    table.trim_matches(['[', ']'])
}

/// Whether a value is a table, or an array of tables.
pub(super) fn is_table(value: &DeValue<'_>) -> bool {
    match value {
        DeValue::Table(_) => true,
        DeValue::Array(array) if !array.is_empty() => {
            array.iter().all(|value| value.get_ref().is_table())
        }
        _ => false,
    }
}

/// Names of the option for the server behind a proxy, here and elsewhere.
const SERVER_OPTIONS: [&str; 4] = ["target", "to", "backend", "upstream"];
