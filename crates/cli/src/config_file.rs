//! The configuration file of all long-running commands: TOML, its keys the names of the options. Those of the process are at
//! the top. `[[listen]]` tables are for `proxy`, `[[forward]]` tables for `forward`, and `[intercept]` is for `intercept`.

mod intercept_table;
mod options_table;
mod origin;
pub(crate) mod table_options;

use std::path::Path;

use peername_daemon::process::Process;
use peername_daemon::reload::file_watch::Fingerprints;
use peername_sys::fs::text_file;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::de::DeTable;

use crate::cmd::forward::options::Forward;
use crate::cmd::proxy::options::{HostArgs, Listener};
use intercept_table::Intercept;
use options_table::{Mistake, Tables, read_options};
pub(crate) use origin::{Origin, Table};

/// The configuration in force: that of the file, with the options of the command line, or of the command line alone.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case")]
#[schemars(
    title = "peername",
    description = "A configuration file of peername",
    extend("additionalProperties" = false)
)]
pub(crate) struct Configuration {
    #[serde(flatten)]
    pub(crate) top: Top,
    /// Groups of listeners of `peername proxy`, each with its own configuration
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) listen: Vec<Table<Listener>>,
    /// Groups of listeners of `peername forward`, each with its own configuration
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) forward: Vec<Table<Forward>>,
    /// `peername intercept`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) intercept: Option<Table<Intercept>>,
}

impl Configuration {
    /// The text of `/config`: JSON with the keys of the file, without secrets.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|error| error.to_string()) + "\n"
    }
}

/// The keys at the top.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Top {
    #[serde(flatten)]
    pub(crate) process: Process,
    #[serde(flatten)]
    pub(crate) host: HostArgs,
}

/// The tables of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `[[listen]]`, of `proxy`.
    Listen,
    /// `[[forward]]`, of `forward`.
    Forward,
    /// `[intercept]`, of `intercept`.
    Intercept,
}

/// All errors in a file, each with its file, line and key.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub(crate) struct Problems(pub(crate) Vec<String>);

/// Reads a file and the tables of these kinds in it. The files that it names are not read yet.
///
/// # Errors
///
/// All errors of syntax, keys and values; or there is no table of these kinds.
pub(crate) fn read(
    path: &Path,
    kinds: &[Kind],
    files: &mut Fingerprints,
) -> Result<Configuration, Problems> {
    let (config, problems) = read_partial(path, kinds, files);
    match problems.is_empty() {
        true => Ok(config),
        false => Err(Problems(problems)),
    }
}

/// As [`read`]; with errors, what could be read nevertheless is validated further.
pub(crate) fn read_partial(
    path: &Path,
    kinds: &[Kind],
    files: &mut Fingerprints,
) -> (Configuration, Vec<String>) {
    let problem = |why: &str| vec![format!("{}: {why}", path.display())];
    files.note(path);
    let text = match text_file::read(path) {
        Ok(text) => text,
        Err(why) => return (Configuration::default(), problem(&why.to_string())),
    };
    let mut mistakes = Vec::new();
    let config = parse((path, &text), kinds, &mut mistakes);
    mistakes.sort_by_key(|mistake| mistake.at);
    let problems: Vec<_> = mistakes.iter().map(|one| one.locate(path, &text)).collect();
    match problems.is_empty() && config.is_empty() {
        true => (config, problem(&no_table(kinds))),
        false => (config, problems),
    }
}

fn no_table(kinds: &[Kind]) -> String {
    let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    format!(
        "no {} table: there is nothing to listen on",
        names.join(" or ")
    )
}

/// The schema of the file, as JSON.
pub(crate) fn schema() -> schemars::Schema {
    schemars::schema_for!(Configuration)
}

/// After a syntax error nothing else is read: further errors may be consequences of it.
fn parse(
    (path, text): (&Path, &str),
    kinds: &[Kind],
    mistakes: &mut Vec<Mistake>,
) -> Configuration {
    let (table, syntax) = DeTable::parse_recoverable(text);
    if !syntax.is_empty() {
        mistakes.extend(syntax.iter().map(Mistake::from_parser));
        return Configuration::default();
    }
    let mut table = table.into_inner();
    let mut tables = |kind: Kind, key: &str| {
        let found = table.remove(key);
        let found = found.filter(|_| kinds.contains(&kind));
        found.map(|tables| Tables::new(kind.name(), tables, (path, text)))
    };
    let listen = tables(Kind::Listen, "listen");
    let forward = tables(Kind::Forward, "forward");
    let intercept = tables(Kind::Intercept, "intercept");
    Configuration {
        top: read_options(table, mistakes).0,
        listen: listen.map_or_else(Vec::new, |tables| tables.read_array(mistakes)),
        forward: forward.map_or_else(Vec::new, |tables| tables.read_array(mistakes)),
        intercept: intercept.and_then(|table| intercept_table::read(table, mistakes)),
    }
}

impl Configuration {
    fn is_empty(&self) -> bool {
        self.listen.is_empty() && self.forward.is_empty() && self.intercept.is_none()
    }
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Self; 3] = [Self::Listen, Self::Forward, Self::Intercept];

    fn name(self) -> &'static str {
        match self {
            Self::Listen => "[[listen]]",
            Self::Forward => "[[forward]]",
            Self::Intercept => "[intercept]",
        }
    }
}
