//! Where options were given, for error messages.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};

use peername_daemon::usage::Usage;

/// Where options were given.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    CommandLine,
    /// A table of a file.
    Table {
        /// File and line.
        place: String,
        name: &'static str,
    },
}

/// The options of one table, or of a command line.
#[derive(Clone, Debug)]
pub(crate) struct Table<T> {
    pub(crate) options: T,
    pub(crate) origin: Origin,
    /// The keys that could not be read. The options have their defaults.
    pub(super) unread: Vec<String>,
}

impl<T> Table<T> {
    pub(crate) fn of_command_line(options: T) -> Self {
        Self {
            options,
            origin: Origin::CommandLine,
            unread: Vec::new(),
        }
    }

    /// Whether some keys could not be read.
    pub(crate) fn is_partial(&self) -> bool {
        !self.unread.is_empty()
    }

    /// The errors of the options with their place, without those that name a key that could not be read: they may be
    /// consequences.
    pub(crate) fn located(&self, Usage(errors): &Usage) -> impl Iterator<Item = String> {
        let is_own = |line: &&str| !self.unread.iter().any(|key| self.names(line, key));
        errors
            .lines()
            .filter(is_own)
            .map(|line| self.origin.of(line))
    }

    /// Whether an error names the option of this key.
    fn names(&self, error: &str, key: &str) -> bool {
        let option = match (&self.origin, key) {
            (
                Origin::Table {
                    name: "[[listen]]", ..
                },
                "address",
            ) => "listen",
            (_, key) => key,
        };
        let mut words = error.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        words.any(|word| word.strip_prefix("--") == Some(option))
    }
}

impl Origin {
    /// The error with its file and line. In a file options have no dashes, and one has another name.
    pub(crate) fn of(&self, text: &str) -> String {
        let Self::Table { place, name } = self else {
            return text.to_owned();
        };
        let text = match *name {
            "[[listen]]" => text.replace("--listen", "address"),
            _ => text.to_owned(),
        };
        let text = text
            .replace("--trust 192.0.2.0/24", "trust = [\"192.0.2.0/24\"]")
            .replace("--", "");
        format!("{place}, {name}: {text}")
    }
}

impl<T: Serialize> Serialize for Table<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.options.serialize(to)
    }
}

impl<T: JsonSchema> JsonSchema for Table<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = T::json_schema(generator);
        schema.insert("additionalProperties".to_owned(), false.into());
        schema
    }
}
