//! Where options were given, for error messages.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};

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
}

impl<T> Table<T> {
    pub(crate) fn of_command_line(options: T) -> Self {
        let origin = Origin::CommandLine;
        Self { options, origin }
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
