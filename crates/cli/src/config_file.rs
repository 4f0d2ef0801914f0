//! The configuration file of all long-running commands: TOML, whose keys are the names of the options. The options of the
//! process are at the top. `[[listen]]` tables are for `proxy`, `[[forward]]` tables for `forward`, `[intercept]` is for
//! `intercept`, `[jail]` for `jail`, and `[[agent]]` tables for `agent`. `jail` and `agent` take nothing from the top.

pub(crate) mod problems;

use std::io::ErrorKind;
use std::mem;
use std::path::Path;

use peername_daemon::options::{Given, KnownTable, Table, Tables, key_of};
use peername_daemon::reload;
use peername_daemon::reload::file_watch::Fingerprints;
use peername_sys::fs::text_file;
use serde_json::Value;
use toml::Spanned;
use toml::de::DeValue;

use crate::cmd::exec::agent::policy_args::Policy;
use crate::cmd::forward::options::Forward;
use crate::cmd::intercept::jail::options::Args as Jail;
use crate::cmd::intercept::options::Intercept;
use crate::cmd::proxy::options::{Listener, Top};

pub(crate) use problems::Problems;

/// The configuration in force: the file with the options of the command line, or the command line alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Configuration {
    pub(crate) top: Given<Top>,
    /// Groups of listeners of `peername proxy`, each with its own configuration.
    pub(crate) listen: Vec<Table<Listener>>,
    /// Groups of listeners of `peername forward`, each with its own configuration.
    pub(crate) forward: Vec<Table<Forward>>,
    pub(crate) intercept: Option<Table<Intercept>>,
    /// The warnings about older names of keys in the file, and those that a command adds.
    pub(crate) warnings: Vec<String>,
    pub(crate) jail: Option<Table<Jail>>,
    /// The policies of `peername agent`.
    pub(crate) agent: Vec<Table<Policy>>,
}

impl Configuration {
    /// Reads the tables of this kind in a file; without a file, returns the options of the command line.
    pub(crate) fn load(
        file: Option<&Path>,
        kind: Kind,
        files: &mut Fingerprints,
        command_line: Self,
    ) -> Unvalidated {
        match file {
            Some(path) => read_partial(path, &[kind], files),
            None => Unvalidated {
                config: command_line,
                problems: Vec::new(),
            },
        }
    }

    /// Takes what the configuration of every command has. Sets the number of workers, unless it was given.
    pub(crate) fn take_common(&mut self, default_workers: usize) -> reload::Common {
        self.top
            .options
            .process
            .set_default_workers(default_workers);
        self.top.show_default("workers", default_workers);
        reload::Common {
            process: self.top.options.process.clone(),
            json: self.to_json(),
            warnings: mem::take(&mut self.warnings),
        }
    }

    /// The text of `/config`: JSON with the keys of the file, without secrets.
    fn to_json(&self) -> String {
        let mut keys = self.top.as_json().clone();
        let mut add = |key: &str, tables: Vec<Value>| {
            if !tables.is_empty() {
                keys.insert(key.to_owned(), tables.into());
            }
        };
        add("listen", shown(&self.listen));
        add("forward", shown(&self.forward));
        if let Some(table) = &self.intercept {
            keys.insert("intercept".to_owned(), table.given.as_json().clone().into());
        }
        format!("{:#}\n", Value::from(keys))
    }

    fn has_no_table(&self) -> bool {
        self.listen.is_empty()
            && self.forward.is_empty()
            && self.intercept.is_none()
            && self.jail.is_none()
            && self.agent.is_empty()
    }
}

fn shown<T: clap::Args>(tables: &[Table<T>]) -> Vec<Value> {
    tables
        .iter()
        .map(|table| table.given.as_json().clone().into())
        .collect()
}

/// The tables of a command, by their [`Kind::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Listen,
    Forward,
    Intercept,
    Jail,
    Agent,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Listen,
        Self::Forward,
        Self::Intercept,
        Self::Jail,
        Self::Agent,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Listen => "[[listen]]",
            Self::Forward => "[[forward]]",
            Self::Intercept => "[intercept]",
            Self::Jail => "[jail]",
            Self::Agent => "[[agent]]",
        }
    }
}

/// What could be read of a configuration, and the errors of the rest.
#[derive(Debug, Default)]
pub(crate) struct Unvalidated {
    pub(crate) config: Configuration,
    problems: Vec<String>,
}

impl Unvalidated {
    /// Replaces options at the top of the file by those of the command line, or notes that options contradict each other.
    pub(crate) fn with_command_line<T: clap::Args>(mut self, line: &Given<T>) -> Self {
        match self.config.top.clone().with_command_line(line, &[]) {
            Ok(merged) => self.config.top = merged.given,
            Err(error) => self.problems.push(error.to_string()),
        }
        self
    }

    /// Validates what could be read, also after an error, so that one run reports all errors.
    pub(crate) fn validate<S>(
        self,
        validate: impl FnOnce(Configuration) -> Result<S, Problems>,
    ) -> Result<S, Problems> {
        let mut problems = self.problems;
        match validate(self.config) {
            Ok(valid) if problems.is_empty() => return Ok(valid),
            Ok(_) => {}
            Err(Problems(more)) => problems.extend(more),
        }
        Err(Problems(problems))
    }
}

/// Reads a configuration file as the command with tables of this kind does.
pub(crate) fn read_setup<S>(
    path: &Path,
    kind: Kind,
    new: impl FnOnce(Configuration) -> Result<S, Problems>,
) -> Result<S, Vec<String>> {
    read_partial(path, &[kind], &mut Fingerprints::default())
        .validate(new)
        .map_err(|problems| problems.0)
}

/// Reads a file and the tables of these kinds in it. The files that it names are not read yet. Returns the errors together with
/// what could be read: the file can't be read, or has no table of these kinds; or its first errors of syntax, else all its
/// errors in keys and values.
pub(crate) fn read_partial(path: &Path, kinds: &[Kind], files: &mut Fingerprints) -> Unvalidated {
    let problem = |why: &str| vec![format!("{}: {why}", path.display())];
    files.note(path);
    let text = match text_file::read(path) {
        Ok(text) => text,
        Err(error) => {
            let why = match error.kind() {
                ErrorKind::NotFound => {
                    let page = page_with_examples(kinds);
                    format!("there is no such file; {page} has examples")
                }
                _ => error.to_string(),
            };
            return Unvalidated {
                problems: problem(&why),
                ..Unvalidated::default()
            };
        }
    };
    let mut tables = Tables::new(path, &text, known_tables());
    let mut config = parse(&mut tables, kinds);
    config.warnings = tables.warnings().collect();
    let mut problems = tables.errors();
    if problems.is_empty() && config.has_no_table() {
        problems = problem(&no_table(kinds));
    }
    Unvalidated { config, problems }
}

fn page_with_examples(kinds: &[Kind]) -> &'static str {
    match kinds {
        [Kind::Jail] => "docs/jail.md",
        _ => "docs/config.md",
    }
}

fn no_table(kinds: &[Kind]) -> String {
    let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    let names = names.join(" or ");
    match kinds {
        [Kind::Jail | Kind::Agent] => {
            format!(
                "no {names} table; {} has examples",
                page_with_examples(kinds)
            )
        }
        _ => {
            format!("no {names} table: there is nothing to listen on; docs/config.md has examples")
        }
    }
}

fn parse(tables: &mut Tables<'_>, kinds: &[Kind]) -> Configuration {
    let mut keys = tables.parse();
    let [listen, forward, intercept, jail, agent] = Kind::ALL.map(|kind| {
        keys.remove(key_of(kind.name()))
            .filter(|_| kinds.contains(&kind))
    });
    for table in [&intercept, &jail].into_iter().flatten() {
        refuse_unordered_rules(tables, table);
    }
    Configuration {
        warnings: Vec::new(),
        top: tables.read_top(keys),
        listen: tables.read_array(Kind::Listen.name(), listen),
        forward: tables.read_array(Kind::Forward.name(), forward),
        intercept: tables.read_table(Kind::Intercept.name(), intercept),
        jail: tables.read_table(Kind::Jail.name(), jail),
        agent: tables.read_array(Kind::Agent.name(), agent),
    }
}

/// Refuses two of the keys `rules`, `allow` and `deny`: the first rule that matches decides, and the keys of a table have no
/// order, because tools sort them.
fn refuse_unordered_rules(tables: &mut Tables<'_>, table: &Spanned<DeValue<'_>>) {
    let Some(keys) = table.get_ref().as_table() else {
        return;
    };
    let present: Vec<_> = ["rules", "allow", "deny"]
        .into_iter()
        .filter_map(|name| keys.get_key_value(name))
        .collect();
    if let [(first, _), (second, _), ..] = present.as_slice() {
        let (first, other) = (first.get_ref(), second.get_ref());
        let why = format!(
            "`{other}` beside `{first}`: write all in `rules`, in their order: \"deny HOST\", \"allow HOST\", \"allow @FILE\""
        );
        tables.refuse(second.span().start, why);
    }
}

/// The top of the file and all its tables.
pub(crate) fn known_tables() -> Vec<KnownTable> {
    vec![
        KnownTable::top::<Top>(),
        KnownTable::table::<Listener>(
            Kind::Listen.name(),
            "Groups of listeners of `peername proxy`, each with its own configuration",
        ),
        KnownTable::table::<Forward>(
            Kind::Forward.name(),
            "Groups of listeners of `peername forward`, each with its own configuration",
        ),
        KnownTable::table::<Intercept>(Kind::Intercept.name(), "`peername intercept`"),
        KnownTable::table::<Jail>(Kind::Jail.name(), "`peername jail`"),
        KnownTable::table::<Policy>(
            Kind::Agent.name(),
            "Policies of `peername agent`, for containers that name them",
        ),
    ]
}

#[cfg(test)]
mod tests;
