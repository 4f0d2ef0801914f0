//! The options that name backends: of `proxy`, `routes add` and `doctor`.

use peername_daemon::usage::{ErrorCollector, UsageError};
use peername_daemon::value::{self, Target};
use peername_proxy::config::Targets;

/// The backends, one for each address family of clients.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// The backend of clients of its address family; port "same" is the port that they connected to; may be repeated, once for
    /// each family
    #[arg(long, value_name = "ADDR")]
    target: Vec<Target>,
    /// The backend of IPv4 clients: --target with an address or name of this family
    #[arg(short = '4', long, value_name = "ADDR", value_parser = value::target_v4, hide_short_help = true)]
    target_v4: Option<Target>,
    /// The backend of IPv6 clients: --target with an address or name of this family
    #[arg(short = '6', long, value_name = "ADDR", value_parser = value::target_v6, hide_short_help = true)]
    target_v6: Option<Target>,
    /// The backend of a family for which nothing else names one: of command lines of other programs, which have such defaults
    #[arg(long, value_name = "ADDR", hide = true)]
    default_target: Vec<Target>,
}

impl Args {
    /// The target of each family; `None` for a family that no option names.
    pub(crate) fn targets(&self) -> Result<Targets, UsageError> {
        let mut targets = self.named_targets()?;
        for default in &self.default_target {
            for rule in default.targets().map_err(UsageError)?.iter() {
                // Fails if a target of this family is named, which is kept.
                let _ = targets.insert(rule);
            }
        }
        Ok(targets)
    }

    /// As [`Args::targets`], without defaults.
    pub(crate) fn named_targets(&self) -> Result<Targets, UsageError> {
        let mut errors = ErrorCollector::default();
        let mut targets = Targets::default();
        for (option, value) in self.values() {
            match value {
                Err(why) => errors.push(format!("{option}: {why}")),
                Ok(rules) => {
                    for rule in rules.iter() {
                        if let Err(earlier) = targets.insert(rule) {
                            errors.push(format!(
                                "{option} {rule}: {} clients have a backend already, {earlier}; another server needs a listener \
                                 of its own, and `routes add` a call of its own or no --target",
                                if rule.ip().is_ipv4() { "IPv4" } else { "IPv6" }
                            ));
                        }
                    }
                }
            }
        }
        errors.into_result(Some(targets))
    }

    /// The values, each with its option.
    fn values(&self) -> impl Iterator<Item = (&'static str, Result<Targets, String>)> {
        self.target
            .iter()
            .map(|target| ("--target", target.targets()))
            .chain(
                self.target_v4
                    .iter()
                    .map(|target| ("--target-v4", target.target_v4())),
            )
            .chain(
                self.target_v6
                    .iter()
                    .map(|target| ("--target-v6", target.target_v6())),
            )
    }
}
