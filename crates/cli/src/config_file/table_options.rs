//! Options that are also the keys of a table of the configuration file.

use clap::{ArgMatches, Command, FromArgMatches, Parser};

/// Options that can't be combined with `--config`: it would not be clear which table they belong to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NotWithFile<T>(pub(crate) T);

impl<T: clap::Args> clap::Args for NotWithFile<T> {
    fn augment_args(command: Command) -> Command {
        let own = T::augment_args(Command::new("options"));
        let own = own.get_arguments().cloned();
        command.args(own.map(|arg| arg.conflicts_with("config")))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: clap::Args> FromArgMatches for NotWithFile<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

/// The default of each option, which a key that is absent has.
pub(crate) fn option_defaults<T: clap::Args>() -> T {
    #[derive(Parser)]
    struct Empty<T: clap::Args> {
        #[command(flatten)]
        options: T,
    }
    Empty::parse_from(["peername"]).options
}
