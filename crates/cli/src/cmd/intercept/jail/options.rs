//! The options of `peername jail`: its own, and those of `peername intercept` that concern requests.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, FromArgMatches};
use peername_intercept::listener::jail::TunnelledDestination;
use peername_jail::network::DNS_PORT;

use crate::cmd::intercept::options::Intercept;
use crate::logging;
use crate::process::confinement;

/// Options of `peername jail`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A further port on which TLS and HTTP are opened, beside 80 and 443; may be repeated
    #[arg(long = "port", value_name = "N", value_parser = port)]
    ports: Vec<u16>,
    /// A destination whose connections are relayed unopened, once the check has allowed a CONNECT to it: github.com:22,
    /// *.example.com:5432 or 192.0.2.0/24:22; may be repeated
    #[arg(long, value_name = "HOST:PORT", value_parser = tunnelled)]
    pub(super) allow_tcp: Vec<TunnelledDestination>,
    /// A file or directory that the program sees empty; may be repeated
    #[arg(long, value_name = "PATH")]
    pub(super) hide: Vec<PathBuf>,
    /// A Unix socket of this host that the program may connect to, or a directory of such; may be repeated [default: none]
    #[arg(long, value_name = "PATH")]
    pub(super) allow_unix: Vec<PathBuf>,
    /// Write the audit lines to this file [default: to standard error with -v, else nowhere]
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    #[command(flatten)]
    pub(super) intercept: InJail<Intercept>,
    #[command(flatten)]
    pub(super) sandbox: confinement::Args,
    #[command(flatten)]
    pub(super) logging: logging::Args,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
}

impl Args {
    /// The ports on which the jail listens: those that are opened, and those of `--allow-tcp`.
    pub(super) fn opened_ports(&self) -> BTreeSet<u16> {
        let tunnelled = self.allow_tcp.iter().map(TunnelledDestination::port);
        self.http_ports().into_iter().chain(tunnelled).collect()
    }

    /// The ports on which TLS and HTTP are opened.
    pub(super) fn http_ports(&self) -> BTreeSet<u16> {
        [80, 443]
            .into_iter()
            .chain(self.ports.iter().copied())
            .collect()
    }

    /// The directory of the authority, if there is one.
    pub(super) fn ca(&self) -> Option<&Path> {
        self.intercept.0.ca.given()
    }
}

fn port(text: &str) -> Result<u16, &'static str> {
    match text.parse() {
        Ok(DNS_PORT) => Err("53 is the jail's name server's"),
        Ok(port) if port != 0 => Ok(port),
        _ => Err("a port is a number from 1 to 65535"),
    }
}

fn tunnelled(text: &str) -> Result<TunnelledDestination, String> {
    let parsed: TunnelledDestination = text.parse().map_err(|error| format!("{error}"))?;
    match parsed.port() {
        DNS_PORT => Err("53 is the jail's name server's".to_owned()),
        _ => Ok(parsed),
    }
}

/// Options of `intercept` without those of its listeners: a jail has its own listeners, and one client.
#[derive(Clone, Debug)]
pub(super) struct InJail<T>(pub(super) T);

impl<T: clap::Args> clap::Args for InJail<T> {
    fn augment_args(command: Command) -> Command {
        let own = T::augment_args(Command::new("options"));
        let own = own.get_arguments().cloned();
        command.args(own.map(|arg| match arg.get_id().as_str() {
            id if OF_LISTENERS.contains(&id) => arg.hide(true),
            "ca" => {
                arg.help("The directory of the authority [default: one that ends with the program]")
            }
            _ => arg,
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: clap::Args> FromArgMatches for InJail<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |id: &&&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        if let Some(id) = OF_LISTENERS.iter().find(is_given) {
            let option = id.replace('_', "-");
            let text =
                format!("--{option} is for `peername intercept`: a jail has its own listeners\n");
            return Err(clap::Error::raw(ErrorKind::UnknownArgument, text));
        }
        T::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

const OF_LISTENERS: [&str; 5] = [
    "listen",
    "transparent",
    "allow_client",
    "proxy_auth",
    "accept_proxy",
];
