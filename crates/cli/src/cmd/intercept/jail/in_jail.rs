//! Options of `intercept` as a jail has them.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, FromArgMatches};

use crate::cmd::intercept::check_args::check_help;
use crate::cmd::intercept::rule_args::allow_help;

/// Options of `intercept` without those of its listeners: a jail has its own listeners, and one client.
#[derive(Clone, Debug)]
pub(super) struct InJail<T>(pub(super) T);

impl<T: clap::Args> clap::Args for InJail<T> {
    fn augment_args(command: Command) -> Command {
        let mut command = T::augment_args(command);
        for id in LISTENER_OPTIONS {
            command = command.mut_arg(id, |arg| arg.hide(true));
        }
        command
            .mut_arg("check", |arg| arg.help(check_help("all requests are denied")))
            .mut_arg("allow", |arg| {
                arg.help(allow_help("whose connections are relayed unopened"))
            })
            .mut_arg("certificates_per_client", |arg| arg.help(CERTIFICATES_HELP))
            .mut_arg("ca", |arg| {
                arg.help("The directory of the authority [default: one that ends with the program]")
            })
            .mut_arg("auto_passthrough", |arg| {
                arg.help(
                    "With --learn or --ask alone: relay a host's TLS unopened once the program has refused the jail's certificate \
                     for it three times",
                )
            })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: clap::Args> FromArgMatches for InJail<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        for id in LISTENER_OPTIONS {
            if matches.value_source(id) == Some(ValueSource::CommandLine) {
                let option = id.replace('_', "-");
                let text = format!(
                    "--{option} is for `peername intercept`: a jail has its own listeners\n"
                );
                return Err(clap::Error::raw(ErrorKind::UnknownArgument, text));
            }
        }
        T::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

const CERTIFICATES_HELP: &str = "New certificates that the program's connections may cause in a second; beyond that they wait, \
    4 s at most, and are then refused (429)";
/// The ids of the options that a jail refuses.
pub(super) const LISTENER_OPTIONS: [&str; 5] = [
    "listen",
    "transparent",
    "allow_client",
    "proxy_auth",
    "accept_proxy",
];
