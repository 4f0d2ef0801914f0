//! The options of `peername agent`.

use std::path::PathBuf;

use peername_daemon::admin::AdminArgs;
use peername_daemon::options::{Given, Table, heading, not_with_file};
use peername_daemon::reload::file_watch::Fingerprints;
use peername_daemon::usage::UsageError;
use peername_exec::agent::AgentPolicy;

use super::policy_args::{Policy, policies};
use super::profile;
use super::values::{SOCKET, socket_path, user_id};
use crate::config_file::{Configuration, Kind};

/// Options of `peername agent`.
#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLE, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(super) action: Option<Action>,
    #[command(flatten)]
    pub(super) serve: Given<Serve>,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Action {
    /// Print the seccomp profile by which a container runtime announces its containers to the agent, or check one
    Profile(profile::Args),
    /// Keep the descriptors of containers while their agent is replaced, where the agent's own processes end with it, as in a
    /// container; give both the same --holder
    Hold(Hold),
}

/// Options of `peername agent hold`.
#[derive(Debug, clap::Args)]
#[command(before_help = HOLD_EXAMPLE)]
pub(super) struct Hold {
    /// The agent's socket
    #[arg(short, long, value_name = "unix:PATH", default_value = SOCKET, value_parser = socket_path)]
    pub(super) listen: PathBuf,
    /// The socket for the agent
    #[arg(long, value_name = "unix:PATH", value_parser = socket_path)]
    pub(super) holder: PathBuf,
}

/// Options of the agent itself.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = heading::CONTAINERS, mut_args(not_with_file::<Policy>()))]
pub(super) struct Serve {
    /// Read the policies in the `[[agent]]` tables of this file (docs/config.md); SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Reload when the file of --config changes
    #[arg(long, requires = "config")]
    pub(super) watch: bool,
    /// The Unix socket by which container runtimes announce containers: listenerPath of their seccomp profile
    #[arg(short, long, value_name = "unix:PATH", default_value = SOCKET, value_parser = socket_path)]
    pub(super) listen: PathBuf,
    /// A user whose container runtimes may announce containers, beside root and the agent's own; may be repeated
    #[arg(long, value_name = "UID", value_parser = user_id)]
    pub(super) runtime_uid: Vec<u32>,
    /// The socket of `peername agent hold`, which keeps the descriptors of containers, so that the agent may be killed
    /// [default: the service manager keeps them, or a process that the agent starts]
    #[arg(long, value_name = "unix:PATH", value_parser = socket_path, hide_short_help = true)]
    pub(super) holder: Option<PathBuf>,
    /// What this agent does once another one, with the same --listen, has taken over
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "exit",
        hide_short_help = true
    )]
    pub(super) on_takeover: OnTakeover,
    #[command(flatten)]
    policy: Given<Policy>,
    #[command(flatten, next_help_heading = heading::OPERATION)]
    pub(super) admin: AdminArgs,
    /// Log each container, and each refused connection
    #[arg(short, long, help_heading = heading::OPERATION)]
    pub(super) verbose: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OnTakeover {
    /// Exit
    Exit,
    /// Wait for SIGTERM: for an agent that would be started again after its exit and take over in turn
    Wait,
}

impl Serve {
    /// The policies. Reads the files that they name.
    pub(super) fn policies(
        &self,
        files: &mut Fingerprints,
    ) -> Result<Vec<AgentPolicy>, UsageError> {
        let command_line = Configuration {
            agent: vec![Table::from_command_line(self.policy.clone())],
            ..Configuration::default()
        };
        let file = self.config.as_deref();
        let mut policies = Configuration::load(file, Kind::Agent, files, command_line)
            .validate(|config| policies(&config.agent))
            .map_err(UsageError::from_error)?;
        for policy in &mut policies {
            policy.verbose = self.verbose;
        }
        Ok(policies)
    }
}

const EXAMPLE: &str = "\
Examples: the balancers of 192.0.2.0/24 in front of containers; the seccomp profile of those containers
  peername agent --trust 192.0.2.0/24 --ports 443
  peername agent profile > peername.json";
const HOLD_EXAMPLE: &str = "\
Example: a container beside the agent's, with a folder that both have
  peername agent hold --holder unix:/held/agent.sock";
