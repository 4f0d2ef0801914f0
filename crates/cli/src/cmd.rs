//! The subcommands, one file each: its options and its implementation. A build may lack some (`[features]` in Cargo.toml).

#[cfg(feature = "intercept")]
pub(crate) mod ca;
mod completions;
mod config;
mod decode;
mod demo;
pub(crate) mod doctor;
#[cfg(feature = "exec")]
mod exec;
pub(crate) mod forward;
#[cfg(feature = "intercept")]
pub(crate) mod intercept;
mod man;
pub(crate) mod proxy;
mod routes;
mod send;
#[cfg(feature = "top")]
mod top;
mod upgrade;

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
#[cfg(feature = "exec")]
use peername_daemon::options::Given;

/// The subcommands that this build lacks, each with the feature that adds it.
const LEFT_OUT: &[(&str, &str)] = &[
    #[cfg(not(feature = "exec"))]
    ("exec", "exec"),
    #[cfg(not(feature = "intercept"))]
    ("intercept", "intercept"),
    #[cfg(not(feature = "intercept"))]
    ("jail", "intercept"),
    #[cfg(not(feature = "intercept"))]
    ("ca", "intercept"),
    #[cfg(not(feature = "top"))]
    ("top", "top"),
];

/// Why a subcommand is not recognized although it exists: this build lacks it.
pub(crate) fn explain_left_out(name: &OsStr) -> Option<String> {
    let (name, feature) = LEFT_OUT.iter().find(|(left_out, _)| name == *left_out)?;
    Some(format!(
        "this build lacks `{name}`: build with --features {feature}"
    ))
}

/// What is better said about a command line that clap refuses: the subcommand is left out of this build, or the program that it
/// is to run is not separated from its options.
pub(crate) fn explain(name: &OsStr, error: &clap::Error) -> Option<String> {
    explain_left_out(name).or_else(|| {
        let runs_program = ["exec", "jail"].into_iter().find(|runs| name == *runs)?;
        let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else {
            return None;
        };
        let is_program = error.kind() == ErrorKind::UnknownArgument && !word.starts_with('-');
        is_program.then(|| {
            format!(
                "{word:?} is not an option; put -- in front of the program: `peername {runs_program} OPTIONS -- {word} ...`"
            )
        })
    })
}

/// The subcommand on the command line.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Strip the PROXY header and connect to the backend as the client
    Proxy(Box<proxy::Args>),
    /// Run a server that gets its clients' addresses without a proxy, or a client that sends a header
    #[cfg(feature = "exec")]
    Exec(Box<Given<exec::Args>>),
    /// Accept plain connections and forward them with a header
    Forward(Box<forward::Args>),
    /// Intercept outbound TLS and forward the requests that an external check allows
    #[cfg(feature = "intercept")]
    Intercept(Box<intercept::Args>),
    /// Run a program whose only way out is the interceptor, which checks its requests
    #[cfg(feature = "intercept")]
    Jail(Box<intercept::jail::Args>),
    /// Show in a terminal what a running command does
    #[cfg(feature = "top")]
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
    #[cfg(feature = "intercept")]
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
    /// A failure (exit 1), or wrong usage (exit 2) if it is a [`peername_daemon::usage::Usage`].
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Proxy(args) => proxy::run(&args),
            #[cfg(feature = "exec")]
            Self::Exec(args) => exec::run(&args),
            Self::Forward(args) => forward::run(&args),
            #[cfg(feature = "intercept")]
            Self::Intercept(args) => intercept::run(&args),
            #[cfg(feature = "intercept")]
            Self::Jail(args) => intercept::jail::run(&args),
            #[cfg(feature = "top")]
            Self::Top(args) => top::run(&args),
            Self::Upgrade(args) => upgrade::run(&args),
            Self::Send(args) => send::run(&args),
            Self::Decode(args) => decode::run(&args),
            Self::Routes(args) => routes::run(&args),
            #[cfg(feature = "intercept")]
            Self::Ca(args) => ca::run(&args),
            Self::Doctor(args) => doctor::run(&args),
            Self::Demo(args) => demo::run(&args),
            Self::Config(args) => config::run(&args),
            Self::Completions(args) => completions::run(&args),
            Self::Man(args) => man::run(&args),
        }
    }
}
