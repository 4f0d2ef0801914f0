//! The JSON schema of a file, from the options of its tables.

use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value, json};

use super::known_keys::{KnownTable, key_of};
use super::table::{is_number, is_path};

/// The schema of a configuration file that may have these tables.
pub fn file(tables: &[KnownTable]) -> Value {
    let mut properties = Map::new();
    for table in tables {
        let options = options(&table.command);
        let Some(name) = table.name else {
            properties.extend(options);
            continue;
        };
        let mut schema = object(options.collect());
        if name.starts_with("[[") {
            schema = json!({ "type": "array", "items": schema });
        }
        schema["description"] = table.about.into();
        properties.insert(key_of(name).to_owned(), schema);
    }
    let mut schema = object(properties);
    for (key, value) in [
        ("$schema", "https://json-schema.org/draft/2020-12/schema"),
        ("title", "peername"),
        ("description", "A configuration file of peername"),
    ] {
        schema[key] = value.into();
    }
    schema
}

fn object(properties: Map<String, Value>) -> Value {
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// The properties of a table with the options of this command.
fn options(command: &Command) -> impl Iterator<Item = (String, Value)> {
    command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .flat_map(option_properties)
}

/// The property of an option, once for each of its names.
fn option_properties(arg: &Arg) -> impl Iterator<Item = (String, Value)> + use<> {
    let schema = schema(arg);
    let aliases = arg.get_all_aliases().unwrap_or_default();
    let names: Vec<_> = arg
        .get_long()
        .into_iter()
        .chain(aliases)
        .map(str::to_owned)
        .collect();
    names.into_iter().map(move |name| (name, schema.clone()))
}

fn schema(arg: &Arg) -> Value {
    let mut schema = match arg.get_action() {
        ArgAction::SetTrue => json!({ "type": "boolean" }),
        ArgAction::Count => json!({ "type": "integer", "minimum": 0, "maximum": 255 }),
        ArgAction::Append => {
            let item = value_schema(arg);
            json!({ "anyOf": [item, { "type": "array", "items": item }] })
        }
        _ => value_schema(arg),
    };
    let default = match arg.get_action() {
        ArgAction::Set | ArgAction::Append => arg.get_default_values().first(),
        _ => None,
    };
    if let Some(default) = default {
        let text = default.to_string_lossy();
        schema["default"] = match text.parse::<u64>() {
            Ok(number) if is_number(arg) => number.into(),
            _ => text.into(),
        };
    }
    if let Some(help) = arg.get_long_help().or_else(|| arg.get_help()) {
        schema["description"] = help.to_string().into();
    }
    schema
}

fn value_schema(arg: &Arg) -> Value {
    if is_path(arg) {
        return json!({ "type": "string" });
    }
    if is_number(arg) {
        return json!({ "type": "integer" });
    }
    let possible = arg.get_possible_values();
    if possible.is_empty() {
        return json!({ "type": ["string", "integer"] });
    }
    let names: Vec<&str> = possible
        .iter()
        .flat_map(|value| value.get_name_and_aliases())
        .collect();
    // A file may have an integer without quotes.
    let integers = names.iter().filter_map(|name| name.parse::<i64>().ok());
    let accepted: Vec<Value> = names
        .iter()
        .map(|name| Value::from(*name))
        .chain(integers.map(Value::from))
        .collect();
    json!({ "enum": accepted })
}
