//! The subcommands: one file each, with its options and its implementation.

pub(crate) mod ca;
mod completions;
mod config;
mod decode;
mod demo;
mod doctor;
pub(crate) mod exec;
pub(crate) mod forward;
pub(crate) mod intercept;
mod man;
pub(crate) mod proxy;
mod routes;
mod send;
mod top;
mod upgrade;

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
use peername_daemon::command::{self, Command as _};
use peername_daemon::options::Given;
use peername_daemon::usage::secrets::mask_words;
use peername_daemon::value;

use crate::separator;

/// Explains how to correct a command line that clap refuses; `None` if clap's own message is enough.
pub(crate) fn explain(argv: &[OsString], error: &clap::Error) -> Option<String> {
    let [_, name, words @ ..] = argv else {
        return None;
    };
    if error.kind() == ErrorKind::ValueValidation && value::has_failed_lookup() {
        return explain_failed_lookup(error);
    }
    let words = &mask_words(words);
    match (name.to_str()?, error.kind()) {
        ("jail", _) => intercept::jail::explain_mistake(words, error),
        ("intercept", ErrorKind::ValueValidation) => intercept::explain_rule(error),
        ("exec", ErrorKind::UnknownArgument) => {
            let unknown = separator::context_text(error, ContextKind::InvalidArg)?;
            let before = words.split(|word| word == unknown.as_str()).next()?;
            exec::unit::explain_missing_name(before)
                .or_else(|| separator::explain_missing("exec", words, &unknown))
        }
        ("exec", ErrorKind::MissingRequiredArgument) => exec::unit::explain_missing_name(words)
            .or_else(|| separator::explain_no_program("exec", words, error)),
        _ => None,
    }
}

/// The error of a value with a name that did not resolve: the usage is right.
fn explain_failed_lookup(error: &clap::Error) -> Option<String> {
    let value = separator::context_text(error, ContextKind::InvalidValue)?;
    let cause = error.source()?;
    // `--option <VALUE>`, or `<VALUE>` alone.
    let arg = separator::context_text(error, ContextKind::InvalidArg)?;
    Some(match arg.split_once(' ') {
        Some((option, _)) => format!("{option} {value}: {cause}"),
        None => format!("{value}: {cause}"),
    })
}

/// The subcommand on the command line.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Strip the PROXY header and connect to the backend as the client
    Proxy(Box<proxy::Args>),
    /// Run a server that gets its clients' addresses without a proxy, or a client that sends a header
    Exec(Box<Given<exec::Args>>),
    /// Give containers that are started without peername their clients' addresses, by a container runtime's seccomp profile (TCP;
    /// for UDP use `peername proxy`)
    Agent(Box<exec::agent::Args>),
    /// Accept plain connections and forward them with a header
    Forward(Box<forward::Args>),
    /// Intercept outbound TLS and forward the requests that rules or a check service allow
    Intercept(Box<intercept::Args>),
    /// Run a program whose only way out is the interceptor, which checks its requests; UDP is refused, but names are resolved
    /// inside
    Jail(Box<intercept::jail::CommandLine>),
    /// Show a running command's connections, rates and reasons for refusals in a terminal
    Top(top::Args),
    /// Have a running process replaced by the binary that is at its path now, without loss
    Upgrade(upgrade::Args),
    /// Send one header and standard input to an address, and print the reply
    Send(send::Args),
    /// Print the fields of a header, as JSON
    Decode(decode::Args),
    /// Show, add or remove the routing rules that deliver replies to this host
    Routes(routes::Args),
    /// Manage the certificate authority of `intercept`
    Ca(ca::Args),
    /// Check this host, and print a remedy for each problem
    Doctor(Box<doctor::Args>),
    /// Demonstrate the proxy in a private network namespace
    Demo(demo::Args),
    /// Check a configuration file, or print its schema
    Config(config::Args),
    /// Print shell completions
    Completions(completions::Args),
    /// Write the manual pages to a folder
    Man(man::Args),
}

impl Command {
    /// Runs the subcommand until it ends.
    ///
    /// # Errors
    ///
    /// A failure (exit 1), or wrong usage (exit 2) if it is a [`peername_daemon::usage::UsageError`].
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Proxy(args) => command::run(*args),
            Self::Exec(args) => exec::run(&args),
            Self::Agent(args) => exec::agent::run(&args),
            Self::Forward(args) => command::run(*args),
            Self::Intercept(args) => command::run(*args),
            Self::Jail(args) => intercept::jail::run(&args),
            Self::Top(args) => top::run(&args),
            Self::Upgrade(args) => upgrade::run(&args),
            Self::Send(args) => send::run(&args),
            Self::Decode(args) => decode::run(&args),
            Self::Routes(args) => routes::run(&args),
            Self::Ca(args) => ca::run(&args),
            Self::Doctor(args) => doctor::run(&args),
            Self::Demo(args) => demo::run(&args),
            Self::Config(args) => config::run(&args),
            Self::Completions(args) => completions::run(&args),
            Self::Man(args) => man::run(&args),
        }
    }
}

/// Whether the command line is of a command that [`command::run`] runs. It handles SIGHUP, SIGUSR1 and SIGUSR2.
pub(crate) fn is_long_running(argv: &[OsString]) -> bool {
    let names = [
        proxy::Args::NAME,
        forward::Args::NAME,
        intercept::Args::NAME,
    ];
    argv.get(1)
        .is_some_and(|word| names.iter().any(|name| word == name))
}
