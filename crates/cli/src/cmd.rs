//! The subcommands, one file each: its options and what it does with them.

pub(crate) mod ca;
mod completions;
mod config;
mod decode;
mod demo;
pub(crate) mod doctor;
mod exec;
mod forward;
mod intercept;
mod proxy;
mod routes;
mod self_connect;
mod send;

use std::process::ExitCode;

/// What the user asked for.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Strip the PROXY header and connect to the backend as the client
    Proxy(Box<proxy::Args>),
    /// Run a server so that it sees its clients by itself, or a client that sends a header
    Exec(exec::Args),
    /// Accept plain connections and send them on behind a header
    Forward(forward::Args),
    /// Open the TLS of outbound traffic and let through what an outside check agrees to
    Intercept(Box<intercept::Args>),
    /// Write one header and standard input to an address, print what comes back
    Send(send::Args),
    /// Print what a header says, as JSON
    Decode(decode::Args),
    /// Show, add or remove the rules that bring replies back
    Routes(routes::Args),
    /// Keep the authority that `intercept` signs with
    Ca(ca::Args),
    /// Check this host, and say how to fix what is wrong
    Doctor(doctor::Args),
    /// Show it at work, in a private network namespace
    Demo(demo::Args),
    /// Check a configuration file, or print its schema
    Config(config::Args),
    /// Print shell completions
    Completions(completions::Args),
}

impl Command {
    /// Runs it to its end. An error is a failure (exit 1), or wrong usage (exit 2) if it is a
    /// [`crate::usage::Usage`].
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Proxy(args) => proxy::run(&args),
            Self::Exec(args) => exec::run(&args),
            Self::Forward(args) => forward::run(&args),
            Self::Intercept(args) => intercept::run(&args),
            Self::Send(args) => send::run(&args),
            Self::Decode(args) => decode::run(&args),
            Self::Routes(args) => routes::run(&args),
            Self::Ca(args) => ca::run(&args),
            Self::Doctor(args) => doctor::run(&args),
            Self::Demo(args) => demo::run(&args),
            Self::Config(args) => config::run(&args),
            Self::Completions(args) => completions::run(&args),
        }
    }
}
