//! The JSON schema of the configuration file.

use peername_daemon::options::schema;
use serde_json::{Map, Value, json};

use crate::cmd::exec::agent::policy_args::Policy;
use crate::cmd::forward::options::Forward;
use crate::cmd::intercept::jail::options::Args as Jail;
use crate::cmd::intercept::options::Intercept;
use crate::cmd::proxy::options::{Listener, Top};

/// Builds the schema from the options of all tables.
pub(crate) fn schema() -> Value {
    let table = |properties: Map<String, Value>| json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let array = |properties| json!({ "type": "array", "items": table(properties) });
    let mut properties = schema::properties::<Top>();
    let mut add = |key: &str, mut schema: Value, about: &str| {
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("description".to_owned(), about.into());
        }
        properties.insert(key.to_owned(), schema);
    };
    add(
        "listen",
        array(schema::properties::<Listener>()),
        "Groups of listeners of `peername proxy`, each with its own configuration",
    );
    add(
        "forward",
        array(schema::properties::<Forward>()),
        "Groups of listeners of `peername forward`, each with its own configuration",
    );
    add(
        "intercept",
        table(schema::properties::<Intercept>()),
        "`peername intercept`",
    );
    add(
        "jail",
        table(schema::properties::<Jail>()),
        "`peername jail`",
    );
    add(
        "agent",
        array(schema::properties::<Policy>()),
        "Policies of `peername agent`, for containers that name them",
    );
    let mut schema = table(properties);
    for (key, value) in [
        ("$schema", "https://json-schema.org/draft/2020-12/schema"),
        ("title", "peername"),
        ("description", "A configuration file of peername"),
    ] {
        schema[key] = value.into();
    }
    schema
}
