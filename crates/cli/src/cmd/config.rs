//! `peername config`: checks a configuration file without starting a proxy, and prints its schema.

use std::io::{Write, stdout};
use std::mem;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use peername_daemon::options::{Given, Origin, schema};
use peername_daemon::reload::Setup as _;
use peername_daemon::reload::file_watch::Fingerprints;

use crate::cmd::exec::agent::policy_args;
use crate::cmd::intercept;
use crate::cmd::proxy::options::Top;
use crate::cmd::{forward, proxy};
use crate::config_file::{self, Configuration, Kind, Problems, known_tables};
use crate::exit_code::PROBLEM_FOUND;

/// Options of `peername config`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Example:\n  peername config check /etc/peername/proxy.toml")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Print all errors in a file: unknown keys, invalid values, contradictions, and those of files it names; exit 0 or 3
    #[command(before_help = "Example:\n  peername config check /etc/peername/proxy.toml")]
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print the JSON schema of the configuration file, for editors
    #[command(before_help = "Example:\n  peername config schema > peername.schema.json")]
    Schema,
}

/// Runs `peername config`. Errors in the file are printed, with exit code 3.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Check { file } => check(file),
        Action::Schema => {
            writeln!(stdout(), "{:#}", schema::file(&known_tables()))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn check(path: &Path) -> anyhow::Result<ExitCode> {
    let out = &mut stdout();
    let mut read = config_file::read_partial(path, &Kind::ALL, &mut Fingerprints::default());
    let config = &mut read.config;
    let is_of_server =
        !config.listen.is_empty() || !config.forward.is_empty() || config.intercept.is_some();
    let (fixed_keys, unused_keys) = if is_of_server {
        (fixed_keys(config), Vec::new())
    } else {
        (Vec::new(), top_keys(config))
    };
    let mut warnings = mem::take(&mut config.warnings);
    if let Some(table) = &config.jail
        && let Err(missing) = table.options().check_hidden_paths()
    {
        warnings.extend(table.located(&missing));
    }
    match read.validate(validate) {
        Ok(summary) => {
            for warning in warnings {
                writeln!(out, "warning: {warning}")?;
            }
            if !unused_keys.is_empty() {
                let keys = unused_keys.join(", ");
                writeln!(
                    out,
                    "note: {keys} at the top is for proxy, forward and intercept: jail and agent read their own tables only"
                )?;
            }
            if !fixed_keys.is_empty() {
                let keys = fixed_keys.join(", ");
                writeln!(
                    out,
                    "note: a reload refuses a change of {keys}: restart the process, or `peername upgrade`"
                )?;
            }
            if fixed_keys.contains(&"setup-routes") {
                writeln!(
                    out,
                    "note: with setup-routes, a reload adds no rules: for a new backend on another port, run `peername routes add \
                     --target ADDR:PORT` before it, or restart; without setup-routes, `peername routes add` without --target, run \
                     once, serves all backends on loopback"
                )?;
            }
            writeln!(out, "{}: ok, {summary}", path.display())?;
            Ok(ExitCode::SUCCESS)
        }
        Err(problems) => {
            writeln!(out, "{problems}")?;
            Ok(ExitCode::from(PROBLEM_FOUND))
        }
    }
}

/// The keys at the top of the file.
fn top_keys(config: &Configuration) -> Vec<String> {
    config
        .top
        .words_except(&[])
        .filter_map(|word| Origin::option_name(&word.to_string_lossy()).map(str::to_owned))
        .collect()
}

/// The keys of the file that a reload can't change.
fn fixed_keys(config: &Configuration) -> Vec<&'static str> {
    let (default, top) = (Given::<Top>::default().options, &config.top.options);
    let mut keys = default.process.changes_of_fixed_keys(&top.process);
    keys.extend(default.host.changes_of_fixed_keys(&top.host));
    keys
}

/// Validates the tables of each command; returns a summary of them.
fn validate(config: Configuration) -> Result<String, Problems> {
    let (mut summaries, mut problems) = (Vec::new(), Vec::new());
    let mut note = |name: &str, validated: Result<String, Problems>| match validated {
        Ok(summary) => summaries.push(format!("{name}{summary}")),
        Err(Problems(more)) => problems.extend(more),
    };
    if !config.listen.is_empty() {
        let setup = proxy::setup::Setup::new(config.clone());
        note("", setup.map(|setup| setup.summary()));
    }
    if !config.forward.is_empty() {
        let setup = forward::setup::Setup::new(config.clone());
        note("forward: ", setup.map(|setup| setup.summary()));
    }
    if !config.agent.is_empty() {
        let policies = policy_args::policies(&config.agent);
        let names = policies.map(|policies| {
            let names: Vec<_> = policies.iter().map(|policy| policy.name.as_str()).collect();
            names.join(", ")
        });
        note("agent: ", names);
    }
    if let Some(table) = &config.jail {
        let validated = table.options().validate();
        let validated = validated.map_err(|errors| Problems(table.located(&errors).collect()));
        note("jail", validated.map(|()| String::new()));
    }
    if config.intercept.is_some() {
        let setup = intercept::setup::Setup::new(config);
        note("intercept: ", setup.map(|setup| setup.summary()));
    }
    Problems(problems).into_result()?;
    Ok(summaries.join("; "))
}
