//! The configuration file: TOML, its keys the names of the options, a `[[listen]]` table for each group of
//! listeners with the same configuration.

use std::borrow::Cow;
use std::path::Path;

use peername_observe::admin::AdminAddr;
use peername_sys::fs::text_file;
use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use super::options::{DataPath, Listener, Process};
use super::setup::{Origin, ServicePlan, Setup};
use crate::admin::{self, AdminArgs};
use crate::confinement;
use crate::logging::{self, Format};
use crate::value::{Number, Time};

/// A configuration file of `peername proxy`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(title = "peername proxy")]
pub(crate) struct File {
    /// Event loops, each with sockets of its own; default: one per core
    #[serde(default)]
    workers: Option<Number<1, 1024>>,
    /// Add the routing rules that deliver replies to this host, and remove them at exit
    #[serde(default)]
    setup_routes: bool,
    /// The data path of UDP sessions; default: auto
    #[serde(default)]
    data_path: Option<DataPath>,
    /// The time for which open connections are drained after SIGTERM; default: 30s
    #[serde(default)]
    drain: Option<Time>,
    /// The socket that serves /metrics, /healthz and /readyz: ADDR:PORT, or unix:PATH; default: none
    #[serde(default, deserialize_with = "admin::deserialize")]
    #[schemars(with = "Option<String>")]
    admin: Option<AdminAddr>,
    /// Host names besides localhost and IP addresses in requests to `admin`; default: this host's name
    #[serde(default)]
    admin_host: Vec<String>,
    /// Do not confine the process after its start by Landlock and seccomp (docs/confinement.md)
    #[serde(default)]
    no_sandbox: bool,
    /// The format of the log; default: text on a terminal, else json
    #[serde(default)]
    log_format: Option<Format>,
    /// 1: log a line for each connection at its end; 2: more
    #[serde(default)]
    verbose: u8,
    /// Log warnings and errors only
    #[serde(default)]
    quiet: bool,
    /// Groups of listeners, each with its own configuration
    #[schemars(with = "Vec<Listener>", length(min = 1))]
    listen: Vec<Spanned<Listener>>,
}

/// All errors in a file, each with its file, line and key.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub(crate) struct Problems(pub(crate) Vec<String>);

/// Reads a file and all files that it names. The options in `process` override the file's.
///
/// # Errors
///
/// All errors in the file.
pub(crate) fn read(path: &Path, process: &Process) -> Result<Setup, Problems> {
    let one = |problem: String| Problems(vec![problem]);
    let text = text_file::read(path).map_err(|why| one(format!("{}: {why}", path.display())))?;
    let file: File = toml::from_str(&text).map_err(|first| {
        let mistakes = mistakes(&text);
        let all = if mistakes.is_empty() {
            vec![first]
        } else {
            mistakes
        };
        Problems(all.iter().map(|error| place(path, &text, error)).collect())
    })?;
    let mut problems = Vec::new();
    let mut services = Vec::new();
    for table in &file.listen {
        let line = line_of(&text, table.span().start);
        let origin = Origin(Some(format!("{}, line {line}", path.display())));
        match ServicePlan::new(table.get_ref(), origin) {
            Ok(plan) => services.push(plan),
            Err(problem) => problems.push(problem.0),
        }
    }
    if services.is_empty() && problems.is_empty() {
        let what = "no [[listen]] table: there is nothing to listen on";
        problems.push(format!("{}: {what}", path.display()));
    }
    let setup = Setup {
        process: file.process(process),
        services,
    };
    problems.extend(setup.problems(|_| false));
    match problems.is_empty() {
        true => Ok(setup),
        false => Err(Problems(problems)),
    }
}

/// The schema of the file, as JSON.
pub(crate) fn schema() -> schemars::Schema {
    schemars::schema_for!(File)
}

impl File {
    fn process(&self, over: &Process) -> Process {
        Process {
            sockets_from_outside: over.sockets_from_outside,
            workers: over.workers.or(self.workers),
            setup_routes: over.setup_routes || self.setup_routes,
            data_path: over.data_path.or(self.data_path),
            drain: over.drain.or(self.drain),
            admin: AdminArgs {
                admin: over.admin.admin.clone().or_else(|| self.admin.clone()),
                admin_host: match over.admin.admin_host.as_slice() {
                    [] => self.admin_host.clone(),
                    hosts => hosts.to_vec(),
                },
            },
            sandbox: confinement::Args {
                no_sandbox: over.sandbox.no_sandbox || self.no_sandbox,
            },
            logging: logging::Args {
                log_format: over.logging.log_format.or(self.log_format),
                verbose: over.logging.verbose.max(self.verbose),
                quiet: over.logging.quiet || self.quiet && over.logging.verbose == 0,
            },
        }
    }
}

/// All errors that the parser reports: the syntax error, or else one for each wrong key. By itself the parser stops at
/// the first error of a table.
fn mistakes(text: &str) -> Vec<toml::de::Error> {
    let (table, mut mistakes) = DeTable::parse_recoverable(text);
    // After a syntax error, further errors may be consequences of it.
    let table = if mistakes.is_empty() {
        table.into_inner()
    } else {
        DeTable::new()
    };
    for (key, value) in table {
        let span = value.span();
        match (key.get_ref().as_ref(), value.into_inner()) {
            ("listen", DeValue::Array(tables)) => {
                let keys = tables
                    .into_iter()
                    .flat_map(|table| match table.into_inner() {
                        DeValue::Table(table) => table.into_iter().collect(),
                        _ => Vec::new(),
                    });
                let alone = |(key, value)| wrong::<Listener>([(key, value)]);
                mistakes.extend(keys.filter_map(alone));
            }
            ("listen", _) => {}
            (_, value) => {
                let listen = Spanned::new(0..0, Cow::Borrowed("listen"));
                let none = Spanned::new(0..0, DeValue::Array(DeArray::new()));
                mistakes.extend(wrong::<File>([
                    (key, Spanned::new(span, value)),
                    (listen, none),
                ]));
            }
        }
    }
    mistakes.sort_by_key(|mistake| mistake.span().map(|span| span.start));
    mistakes
}

/// The errors of these keys, with the defaults for all other keys.
fn wrong<'t, T: Deserialize<'t>>(
    keys: impl IntoIterator<Item = (Spanned<Cow<'t, str>>, Spanned<DeValue<'t>>)>,
) -> Option<toml::de::Error> {
    let mut table = DeTable::new();
    table.extend(keys);
    T::deserialize(Deserializer::from(Spanned::new(0..0, table))).err()
}

/// File, line and key of a parser error, and its text.
fn place(path: &Path, text: &str, error: &toml::de::Error) -> String {
    let (path, why) = (path.display(), error.message());
    let Some(at) = error.span().map(|span| span.start) else {
        return format!("{path}: {why}");
    };
    let line = line_of(text, at);
    match key_of(text, at) {
        Some(key) => format!("{path}, line {line}, {key}: {why}"),
        None => format!("{path}, line {line}: {why}"),
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
