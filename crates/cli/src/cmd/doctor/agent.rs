//! `peername doctor agent`: why containers don't see their clients.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use peername_daemon::usage::error_text::with_causes;
use peername_doctor::agent::accept_one::accept_one;
use peername_doctor::agent::container::Trial;
use peername_doctor::agent::runtimes::Runtime;
use peername_doctor::agent::socket::AgentSocket;
use peername_doctor::agent::{kernel, runtimes, security_modules};
use peername_doctor::finding::{Finding, Verdict};
use peername_observe::shell::quote;
use peername_sys::process::user;

use crate::cmd::exec::agent::profile::{self, Profile, SeccompListener};
use crate::cmd::exec::agent::values::{policy_name, socket_path};

/// Options of `peername doctor agent`.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(before_help = EXAMPLE)]
pub(super) struct Args {
    /// The policy of the containers: a name of the agent's configuration [default: that of --profile, or "default"]
    #[arg(long, value_name = "NAME", value_parser = policy_name)]
    policy: Option<String>,
    /// The agent's socket, as of `agent --listen` [default: that of --profile, or /run/peername-agent/agent.sock]
    #[arg(long, alias = "listen", value_name = "PATH", value_parser = socket_path)]
    socket: Option<PathBuf>,
    /// The seccomp profile of the containers [default: what `peername agent profile` prints]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// An address of the balancer, from which the container gets a connection
    #[arg(long, value_name = "IP")]
    balancer: Option<IpAddr>,
    /// The port on which the server of the container listens
    #[arg(long, value_name = "PORT", default_value = "8443")]
    port: u16,
}

/// Options of `peername doctor accept-one`.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(before_help = "Example:\n  peername doctor accept-one 8443")]
pub(super) struct AcceptOne {
    port: u16,
    #[arg(long)]
    v6: bool,
}

impl AcceptOne {
    pub(super) fn finding(&self) -> Finding {
        let any: IpAddr = if self.v6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        accept_one(SocketAddr::new(any, self.port))
    }
}

/// The findings of all checks.
pub(super) async fn findings(args: &Args) -> Vec<Finding> {
    let runtimes = runtimes::installed();
    let given = args
        .profile
        .as_deref()
        .map(|path| (path, profile::read(path)));
    let parsed = given.as_ref().and_then(|(_, read)| read.as_ref().ok());
    let listener = SeccompListener::from_options_or_profile(
        args.policy.as_deref(),
        args.socket.as_deref(),
        parsed,
    );
    let socket = AgentSocket::check(&listener.socket).await;
    let mut findings = vec![kernel::version(), kernel::ptrace_scope()];
    findings.extend(runtimes::findings(&runtimes));
    findings.extend(security_modules::findings(socket.agent));
    let has_agent = socket.finding.verdict != Verdict::Fail;
    findings.push(socket.finding);
    let (finding, profile) = match given {
        Some((path, read)) => check_given_profile(path, read, &listener),
        None => default_profile(&listener),
    };
    findings.push(finding);
    // Without an agent, or with a faulty profile, a container would only fail for the same reason.
    if has_agent && let Some(profile) = profile {
        findings.extend(try_containers(args, &runtimes, &profile));
    }
    findings
}

/// The profile that `peername agent profile` prints, where no file is given.
fn default_profile(listener: &SeccompListener) -> (Finding, Option<Profile>) {
    let seen = "that of `peername agent profile`: --profile FILE checks another one";
    match listener.profile(None) {
        Ok(profile) => (Finding::ok(PROFILE, seen), Some(profile)),
        Err(error) => (Finding::broken(PROFILE, with_causes(&error)), None),
    }
}

/// Checks the profile of a file, and returns the profile if it has no faults.
fn check_given_profile(
    path: &Path,
    read: anyhow::Result<Profile>,
    listener: &SeccompListener,
) -> (Finding, Option<Profile>) {
    let shown = path.display();
    let profile = match read {
        Ok(profile) => profile,
        Err(error) => {
            let fix = format!(
                "`peername agent profile --socket {} --policy {} --output {}`",
                quote(&listener.socket),
                quote(&listener.policy),
                quote(path)
            );
            return (Finding::fail(PROFILE, with_causes(&error), fix), None);
        }
    };
    let faults = profile::faults(&profile, listener);
    if faults.is_empty() {
        let seen = format!(
            "{shown}: it asks the agent at {} for the policy {}",
            listener.socket.display(),
            listener.policy
        );
        return (Finding::ok(PROFILE, seen), Some(profile));
    }
    let fix = format!(
        "`peername agent profile --socket {} --policy {} --from {} --output NEW`, and start the containers with NEW",
        quote(&listener.socket),
        quote(&listener.policy),
        quote(path)
    );
    let seen = format!("{shown}: {}", faults.join("; "));
    (Finding::fail(PROFILE, seen, fix), None)
}

/// Runs a container by each runtime that can run a bundle. The runtime then connects to the agent, as it does for any container.
fn try_containers(args: &Args, runtimes: &[Runtime], profile: &Profile) -> Vec<Finding> {
    if !user::is_root() {
        return vec![Finding::warn(
            "container",
            "none was tried: only root may start one by runc or crun",
            "run `peername doctor agent` as root",
        )];
    }
    let trial = Trial {
        profile,
        balancer: args.balancer,
        port: args.port,
    };
    runtimes
        .iter()
        .filter(|runtime| runtime.runs_bundles())
        .flat_map(|runtime| trial.run(runtime))
        .collect()
}

const PROFILE: &str = "seccomp profile";
const EXAMPLE: &str = "\
Example: for containers with the profile web.json, behind the balancer 192.0.2.10
  peername doctor agent --profile web.json --policy web --balancer 192.0.2.10 --port 443";
