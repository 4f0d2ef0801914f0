//! The JSON schema of a table, from its options.

use clap::{Arg, ArgAction};
use serde_json::{Map, Value, json};

use super::given::command;

/// The properties of a table with these options.
pub fn properties<T: clap::Args>() -> Map<String, Value> {
    command::<T>()
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .flat_map(option_properties)
        .collect()
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
    if let (Some(default), Some(schema)) = (default, schema.as_object_mut()) {
        let default = default.to_string_lossy().into_owned();
        schema.insert("default".to_owned(), default.into());
    }
    let help = arg.get_long_help().or_else(|| arg.get_help());
    if let (Some(help), Some(schema)) = (help, schema.as_object_mut()) {
        schema.insert("description".to_owned(), help.to_string().into());
    }
    schema
}

fn value_schema(arg: &Arg) -> Value {
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
