//! `--allow` and `--deny`: one list, in the order of the command line. In the configuration file it is one key, because two keys
//! have no order.

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use peername_intercept::authz::{AccessRules, Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::usage::Usage;
use crate::value::AsWritten;

/// The access lists.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct RuleArgs {
    /// Allowed and denied requests, the first match decides: `allow HOST[:PORT][/PATH]`, `deny HOST[:PORT][/PATH]` (--allow,
    /// --deny)
    rules: Vec<AsWritten<Rule>>,
}

impl RuleArgs {
    /// The access lists; `None` if there are none.
    ///
    /// # Errors
    ///
    /// The rules allow nothing.
    pub(super) fn rules(&self) -> Result<Option<AccessRules>, Usage> {
        let rules = self.rules.iter().map(|rule| rule.value.clone());
        AccessRules::new(rules.collect()).map_err(Usage::from_error)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

impl clap::Args for RuleArgs {
    fn augment_args(command: Command) -> Command {
        let arg = |name: &'static str, help: &'static str| {
            Arg::new(name)
                .long(name)
                .value_name("HOST[:PORT][/PATH]")
                .action(ArgAction::Append)
                .value_parser(move |text: &str| format!("{name} {text}").parse::<AsWritten<Rule>>())
                .help(help)
        };
        command
            .arg(arg(
                ALLOW,
                "Allow requests to this host: example.com, *.example.com, a network, or * for every host; may be repeated. The first \
                 match of --allow and --deny decides, and what matches none is denied",
            ))
            .arg(arg(
                DENY,
                "Deny requests to this host; may be repeated. With --check, the service is asked about what is allowed",
            ))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RuleArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let of = |name| {
            let values = matches.get_many::<AsWritten<Rule>>(name);
            let indices = matches.indices_of(name).into_iter().flatten();
            indices.zip(values.into_iter().flatten().cloned())
        };
        let mut rules: Vec<_> = of(ALLOW).chain(of(DENY)).collect();
        rules.sort_by_key(|(index, _)| *index);
        let rules = rules.into_iter().map(|(_, rule)| rule).collect();
        Ok(Self { rules })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

const ALLOW: &str = "allow";
const DENY: &str = "deny";
