//! `peername doctor`: checks this host, and prints a remedy for each problem.
//!
//! All checks run, whatever the others found: the first fault is rarely the only one.

mod agent;
mod intercept;
mod running;

use std::collections::HashSet;
use std::io::{Write, stdout};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use peername_daemon::command::block_on;
use peername_daemon::listeners::resolve_listeners;
use peername_daemon::usage::UsageError;
use peername_daemon::value::{self, Listen};
use peername_doctor::confinement::{host_findings, process_findings};
use peername_doctor::finding::{Finding, Verdict};
use peername_doctor::{backend, backend_listener, host, listener, nat, observe, tproxy, udp};
use peername_observe::admin::AdminAddr;
use peername_proxy::routes::Backend;
use peername_sys::Transport;

use super::proxy::setup::Setup;
use crate::config_file::{Kind, read_setup};
use crate::exit_code::PROBLEM_FOUND;
use crate::options::backend_args::BackendArgs;
use crate::options::protocol::Protocol;

/// Options of `peername doctor`. Without a mode it checks what `peername proxy` needs.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(before_help = "Example:\n  peername doctor --listen 0.0.0.0:443 --target 127.0.0.1:8080")]
pub(crate) struct Args {
    #[command(subcommand)]
    mode: Option<Mode>,
    #[command(flatten)]
    backends: BackendArgs,
    /// The address that the proxy listens on, or will, with one port or a range; may be repeated
    #[arg(short, long, value_name = "ADDR")]
    listen: Vec<Listen>,
    /// Only check that the running command with this --admin is ready: that clients should be sent to it
    #[arg(
        long,
        value_name = "ADDR|unix:PATH",
        conflicts_with_all = ["listen", "target", "target_v4", "target_v6", "observe", "config"]
    )]
    admin: Option<AdminAddr>,
    /// Check the listeners and backends of this configuration file instead of those of the options [default:
    /// /etc/peername/proxy.toml, if neither is given and it exists]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "target", "target_v4", "target_v6", "protocol", "mark", "observe"])]
    config: Option<PathBuf>,
    /// The mark of the proxy's connections to backends on other hosts
    #[arg(short, long, value_name = "N", default_value = "0", value_parser = value::mark)]
    mark: u32,
    /// Instead of the checks: listen on this address and report what the first connection begins with.
    #[arg(long, value_name = "ADDR", value_parser = value::address, conflicts_with_all = ["listen", "target", "target_v4", "target_v6"])]
    observe: Option<SocketAddr>,
    /// How long to observe.
    #[arg(
        long = "for",
        value_name = "DURATION",
        default_value = "10s",
        value_parser = value::duration,
        requires = "observe"
    )]
    observe_for: Duration,
}

/// What to check instead of `peername proxy`. Each was an option once.
#[derive(Debug, clap::Subcommand)]
enum Mode {
    /// Check what `peername intercept` needs
    #[command(long_flag = "intercept")]
    Intercept(Box<intercept::Args>),
    /// Check whether `peername jail` can run a program
    #[command(before_help = "Example:\n  peername doctor jail")]
    Jail,
    /// Find out why containers don't see their clients: runtimes, socket and seccomp profile of `peername agent`, and a container that
    /// accepts a connection
    Agent(agent::Args),
    /// Accept one connection, and print its peer: what `doctor agent` runs in its container
    #[command(hide = true)]
    AcceptOne(agent::AcceptOne),
    /// Report what confines `proxy`, `forward` and `intercept` on this host (docs/confinement.md)
    #[command(
        long_flag = "confinement",
        before_help = "Example:\n  peername doctor confinement --pid 1234"
    )]
    Confinement {
        /// Report what confines this process
        #[arg(long, value_name = "PID", conflicts_with = "config")]
        pid: Option<u32>,
        /// Report the files that `proxy` may use with this configuration file
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

impl Args {
    /// The configuration file to check: the one given, or the packages' one if the options name nothing to check.
    fn config(&self) -> Result<Option<PathBuf>, UsageError> {
        let names_something = self.config.is_some()
            || !self.listen.is_empty()
            || self.mark != 0
            || self.backends.protocol != Protocol::Tcp;
        if names_something || !self.backends.backends()?.is_empty() {
            return Ok(self.config.clone());
        }
        let packaged = PathBuf::from(PACKAGED_CONFIG);
        Ok(packaged.exists().then_some(packaged))
    }
}

/// Prints one line for each check. Exits with 3 if any check failed.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let failed = block_on(async {
        Ok(match &args.mode {
            Some(Mode::Intercept(args)) => examine_intercept(args).await,
            Some(Mode::Jail) => report_all([intercept::jail()]),
            Some(Mode::Agent(args)) => report_all(agent::findings(args).await),
            Some(Mode::AcceptOne(args)) => report_all([args.finding()]),
            Some(Mode::Confinement { pid, config }) => examine_confinement(*pid, config.as_deref()),
            None => examine_proxy(args).await,
        })
    })?;
    Ok(if failed {
        ExitCode::from(PROBLEM_FOUND)
    } else {
        ExitCode::SUCCESS
    })
}

/// Runs the checks that need no mode; returns whether any failed.
async fn examine_proxy(args: &Args) -> bool {
    if let Some(address) = args.observe {
        return report_all([observe::first_bytes(address, args.observe_for).await]);
    }
    if let Some(admin) = &args.admin {
        return report_all([running::readiness(admin).await]);
    }
    match CheckedConfig::from_args(args) {
        Ok(config) => config.examine().await,
        Err(problems) => report_all(problems.into_iter().map(wrong_configuration)),
    }
}

fn wrong_configuration(problem: String) -> Finding {
    Finding::broken("configuration", problem)
}

/// The listeners and backends to check, beside the host.
struct CheckedConfig {
    /// The configuration file; `None` if the options name listeners and backends.
    file: Option<PathBuf>,
    listen: Vec<(Transport, SocketAddr)>,
    has_udp: bool,
    /// Each with the firewall mark of connections to it. Port 0 stands for the port that a client connects to.
    backends: Vec<(Backend, u32)>,
    /// Whether the proxy's start adds the rules and routes that the backends need.
    sets_up_routes: bool,
    /// The admin endpoint of the proxy that runs with the configuration file.
    admin: Option<AdminAddr>,
}

fn to_lines(error: UsageError) -> Vec<String> {
    vec![error.to_string()]
}

impl CheckedConfig {
    /// Reads the configuration file, if there is one, else the options.
    fn from_args(args: &Args) -> Result<Self, Vec<String>> {
        match args.config().map_err(to_lines)? {
            Some(path) => Self::from_file(path),
            None => Self::from_options(args).map_err(to_lines),
        }
    }

    fn from_file(path: PathBuf) -> Result<Self, Vec<String>> {
        let setup = read_setup(&path, Kind::Listen, Setup::new)?;
        let mut seen = HashSet::new();
        let backends = setup
            .probes()
            .map(|probe| {
                let mut backend = probe.backend;
                if setup.is_port_chosen_by_clients(backend) {
                    backend.address.set_port(0);
                }
                (backend, probe.mark.map_or(0, NonZeroU32::get))
            })
            .filter(|backend| seen.insert(*backend))
            .collect();
        let listen: Vec<_> = setup.all_listeners().collect();
        Ok(Self {
            has_udp: listen
                .iter()
                .any(|(transport, _)| *transport == Transport::Udp),
            listen,
            backends,
            sets_up_routes: setup.host.setup_routes,
            admin: setup.common.process.admin.first().cloned(),
            file: Some(path),
        })
    }

    fn from_options(args: &Args) -> Result<Self, UsageError> {
        let listen = resolve_listeners("--listen", &args.listen)?;
        // With TPROXY rules, clients connect to other ports than the listener's.
        let client_ports: &[SocketAddr] = if tproxy::redirects_to(&listen) {
            &[]
        } else {
            &listen
        };
        let backends = args.backends.backends_for_listeners(client_ports)?;
        let transports = args.backends.protocol.transports();
        Ok(Self {
            file: None,
            has_udp: args.backends.protocol.has_udp(),
            listen: transports
                .iter()
                .flat_map(|&transport| listen.iter().map(move |&addr| (transport, addr)))
                .collect(),
            backends: backends
                .into_iter()
                .map(|backend| (backend, args.mark))
                .collect(),
            sets_up_routes: false,
            admin: None,
        })
    }

    /// Whether a proxy serves one of the listeners already.
    fn is_served(&self) -> bool {
        self.listen
            .iter()
            .any(|&(transport, address)| listener::is_served(address, transport, "proxy"))
    }

    /// Runs the checks of `peername proxy`; returns whether any failed.
    async fn examine(&self) -> bool {
        let mut failed = false;
        let mut note = |finding: Finding| failed |= report(&finding) == Verdict::Fail;
        match &self.file {
            Some(path) => note(Finding::ok("configuration", path.display().to_string())),
            None if self.backends.is_empty() => note(Finding::warn(
                "backend",
                "none is named, so none is checked",
                "`peername doctor --target ADDR:PORT`, or --config FILE",
            )),
            None => {}
        }
        if let Some(admin) = &self.admin {
            running::findings(admin)
                .await
                .into_iter()
                .for_each(&mut note);
        }
        host::findings(host::Command::Proxy).for_each(&mut note);
        note(backend::leftovers().await);
        note(host::firewall_marks::check().await);
        note(tproxy::listeners());
        tproxy::firewall().into_iter().for_each(&mut note);
        for &(transport, address) in &self.listen {
            note(listener::check(address, transport, "proxy"));
        }
        if self.admin.is_none() && self.is_served() {
            note(running::unseen_refusals());
        }
        if self.has_udp {
            note(udp::receive_buffer());
            note(udp::data_path());
        }
        for &(backend, mark) in &self.backends {
            self.examine_backend(backend, mark, &mut note).await;
        }
        failed
    }

    async fn examine_backend(&self, backend: Backend, mark: u32, note: &mut impl FnMut(Finding)) {
        let target = backend.address;
        if backend::lacks_family(target).await {
            return note(Finding::ok(
                "backend",
                format!("{target} is left out: this host has no IPv6"),
            ));
        }
        let missing_rules = if self.sets_up_routes {
            backend::missing_rules(backend).await
        } else {
            None
        };
        // Until the proxy's start has added the rules, no reply to a foreign address comes back, and NAT may apply to the
        // backend.
        let is_routed = missing_rules.is_none();
        match missing_rules {
            Some(finding) => note(finding),
            None => {
                note(backend::check_routes(backend, mark).await);
                note(backend::probe_reply_path(backend).await);
            }
        }
        if target.port() == 0 {
            return note(backend::port_of_clients(target));
        }
        if is_routed {
            note(nat::check(backend, mark).await);
        }
        if backend.transport == Transport::Udp {
            return note(udp::bound(target).await);
        }
        let reachable = backend::check_reachable(target).await;
        let is_missing = reachable.verdict == Verdict::Fail;
        note(reachable);
        // The other checks would only repeat that the backend is missing.
        if is_missing {
            return;
        }
        if is_routed {
            note(backend::connect_spoofed(target, mark).await);
        }
        note(backend_listener::check(target).await);
    }
}

/// Runs the checks of `peername intercept`; returns whether any failed.
async fn examine_intercept(args: &intercept::Args) -> bool {
    let plan = match args.plan() {
        Ok(plan) => plan,
        Err(problems) => return report_all(problems.into_iter().map(wrong_configuration)),
    };
    let host: Vec<_> = host::findings(host::Command::Intercept).collect();
    let listeners: Vec<_> = plan
        .listen
        .iter()
        .map(|&address| listener::check(address, Transport::Tcp, "intercept"))
        .collect();
    report_all(
        host.into_iter()
            .chain(args.findings(plan).await)
            .chain(listeners),
    )
}

/// Reports what confines the process, or else commands on this host; returns whether any check failed.
fn examine_confinement(pid: Option<u32>, config: Option<&Path>) -> bool {
    if let Some(pid) = pid {
        return report_all(process_findings(pid));
    }
    // Reading the configuration file also records the files that it names, for the findings.
    match config.map(|path| read_setup(path, Kind::Listen, Setup::new)) {
        Some(Err(problems)) => report_all(problems.into_iter().map(wrong_configuration)),
        Some(Ok(_)) | None => report_all(host_findings(&intercept::needs())),
    }
}

/// Reports these findings; returns whether any is a failure.
fn report_all(findings: impl IntoIterator<Item = Finding>) -> bool {
    findings.into_iter().map(|finding| report(&finding)).max() == Some(Verdict::Fail)
}

fn report(finding: &Finding) -> Verdict {
    // A closed pipe is no error: its reader has read enough, and the verdict still counts.
    let _ = writeln!(stdout(), "{finding}");
    finding.verdict
}

/// The configuration file that the packages' unit uses.
const PACKAGED_CONFIG: &str = "/etc/peername/proxy.toml";
