//! The options of a policy: those of the command line, or of an `[[agent]]` table.

use std::collections::BTreeSet;

use peername_daemon::options::{Table, heading};
use peername_daemon::usage::UsageError;
use peername_exec::agent::{AgentPolicy, DEFAULT_POLICY};

use super::values::policy_name;
use crate::cmd::exec::listener_policy_args::ListenerPolicyArgs;
use crate::config_file::problems::Problems;

/// A policy: which listeners of a container expect headers, and which headers.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = heading::LISTENING)]
#[group(skip)]
pub(crate) struct Policy {
    /// The name of the policy: listenerMetadata of the containers' seccomp profile
    #[arg(long, value_name = "NAME", default_value = DEFAULT_POLICY, value_parser = policy_name)]
    name: String,
    #[command(flatten)]
    listener_policy: ListenerPolicyArgs,
}

/// The policies of these tables. Reads the files that they name.
pub(crate) fn policies(tables: &[Table<Policy>]) -> Result<Vec<AgentPolicy>, Problems> {
    let mut problems = Problems::default();
    let mut names = BTreeSet::new();
    let policies = problems.plan_tables(tables, |table| table.options().policy(&mut names));
    problems.into_result()?;
    Ok(policies)
}

impl Policy {
    /// The policy by these options; `names` are those of the policies before.
    fn policy(&self, names: &mut BTreeSet<String>) -> Result<AgentPolicy, UsageError> {
        if !names.insert(self.name.clone()) {
            return Err(UsageError(format!(
                "--name {:?} is that of another policy",
                self.name
            )));
        }
        let judge = self.listener_policy.client_judge()?;
        Ok(AgentPolicy {
            name: self.name.clone(),
            rules: self.listener_policy.table_rules(judge.is_some())?,
            slots: self.listener_policy.slots(),
            header_timeout: self.listener_policy.headers.header_timeout,
            judge,
            verbose: false,
        })
    }
}
