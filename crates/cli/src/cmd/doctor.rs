//! `peername doctor`: checks this host, and prints a remedy for each problem.
//!
//! Each check is one function that returns one [`Finding`], and all checks run, whatever the others found: the first fault
//! is rarely the only one. A check tries the operation itself where it can (it connects, it binds a port) and reads
//! settings only where it can't.

mod agent;
pub(crate) mod backend;
mod backend_listener;
mod confinement;
mod finding;
mod host;
mod intercept;
mod listener;
mod observe;
mod readiness;
mod tproxy;
mod translation;
mod udp;
mod version;

use std::collections::HashSet;
use std::io::{Write, stdout};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use peername_daemon::command::block_on;
use peername_daemon::listeners::resolve_listeners;
use peername_daemon::reload::file_watch::Fingerprints;
use peername_daemon::usage::Usage;
use peername_daemon::value::{self, Listen};
use peername_proxy::routes::Backend;
use peername_sys::Transport;
use peername_sys::process::launch::exit_code::PROBLEM_FOUND;

use super::proxy::setup::Setup;
use super::routes::BackendArgs;
use crate::config_file::{self, Kind};
use finding::{Finding, Verdict};

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
    #[command(flatten)]
    readiness: readiness::Args,
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
    AcceptOne(agent::accept_one::Args),
    /// Report what confines `proxy`, `forward` and `intercept` on this host (docs/confinement.md)
    #[command(long_flag = "confinement")]
    Confinement(confinement::Args),
}

impl Args {
    /// The configuration file to check: the one given, or that of the packages if the options name nothing else.
    fn config(&self) -> Result<Option<PathBuf>, Usage> {
        let is_named = self.config.is_some() || !self.listen.is_empty() || self.mark != 0;
        if is_named || !self.backends.backends()?.is_empty() {
            return Ok(self.config.clone());
        }
        let packaged = PathBuf::from(PACKAGED_CONFIG);
        Ok(packaged.exists().then_some(packaged))
    }
}

/// The addresses given, or `default`.
fn listen_or(given: &[SocketAddr], default: SocketAddr) -> Vec<SocketAddr> {
    match given {
        [] => vec![default],
        given => given.to_vec(),
    }
}

/// Prints one line for each check. Exits with 3 if any check failed.
///
/// # Errors
///
/// The runtime can't be started. Failed checks are findings, not errors.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let failed = block_on(async {
        Ok(match &args.mode {
            Some(Mode::Intercept(args)) => examine_intercept(args).await,
            Some(Mode::Jail) => report(&intercept::jail()) == Verdict::Fail,
            Some(Mode::Agent(args)) => report_all(agent::findings(args).await),
            Some(Mode::AcceptOne(args)) => report(&agent::accept_one::run(args)) == Verdict::Fail,
            Some(Mode::Confinement(args)) => match args.config.as_deref().map(read_setup) {
                Some(Err(problems)) => report_all(problems.into_iter().map(wrong_configuration)),
                // By now the files are known that it names.
                Some(Ok(_)) | None => report_all(args.findings()),
            },
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
        return report(&observe::first_bytes(address, args.observe_for).await) == Verdict::Fail;
    }
    if args.readiness.admin.is_some() {
        return report_all(args.readiness.finding().await);
    }
    match CheckedConfig::of(args) {
        Ok(checked) => examine(checked).await,
        Err(problems) => report_all(problems.into_iter().map(wrong_configuration)),
    }
}

fn wrong_configuration(problem: String) -> Finding {
    Finding::broken("configuration", problem)
}

/// The listeners and backends to check, beside the host.
struct CheckedConfig {
    /// The file that they are of.
    file: Option<PathBuf>,
    listen: Vec<(Transport, SocketAddr)>,
    /// Each with the firewall mark of connections to it. Port 0 stands for the port that a client connects to.
    backends: Vec<(Backend, u32)>,
    /// Whether the start adds the rules and routes that the backends need.
    sets_up_routes: bool,
}

impl CheckedConfig {
    /// Reads the configuration file, if there is one, else the options.
    ///
    /// # Errors
    ///
    /// All errors in the file, or of the options.
    fn of(args: &Args) -> Result<Self, Vec<String>> {
        let found = match args.config() {
            Ok(Some(path)) => return Self::of_file(path),
            Ok(None) => Self::of_options(args),
            Err(error) => Err(error),
        };
        found.map_err(|error| vec![error.to_string()])
    }

    fn of_file(path: PathBuf) -> Result<Self, Vec<String>> {
        let setup = read_setup(&path)?;
        let mut known = HashSet::new();
        let backends = setup
            .probes()
            .map(|probe| {
                let mut backend = probe.backend;
                if setup.is_port_chosen_by_clients(backend) {
                    backend.address.set_port(0);
                }
                (backend, probe.mark.map_or(0, NonZeroU32::get))
            })
            .filter(|backend| known.insert(*backend))
            .collect();
        Ok(Self {
            listen: setup.all_listeners().collect(),
            backends,
            sets_up_routes: setup.host.setup_routes,
            file: Some(path),
        })
    }

    fn of_options(args: &Args) -> Result<Self, Usage> {
        let listen = resolve_listeners("--listen", &args.listen)?;
        // Behind TPROXY rules the port of a listener is no client's destination.
        let backends = match tproxy::redirects_to(&listen) {
            true => args.backends.backends_of(&[])?,
            false => args.backends.backends_of(&listen)?,
        };
        let transports = args.backends.protocol.transports();
        Ok(Self {
            file: None,
            listen: transports
                .iter()
                .flat_map(|&transport| listen.iter().map(move |&addr| (transport, addr)))
                .collect(),
            backends: backends
                .into_iter()
                .map(|backend| (backend, args.mark))
                .collect(),
            sets_up_routes: false,
        })
    }

    fn has(&self, transport: Transport) -> bool {
        let listen = self.listen.iter().map(|(transport, _)| *transport);
        let backends = self.backends.iter().map(|(backend, _)| backend.transport);
        listen.chain(backends).any(|one| one == transport)
    }
}

/// Reads a configuration file as `peername proxy` does.
///
/// # Errors
///
/// All errors in the file.
fn read_setup(path: &Path) -> Result<Setup, Vec<String>> {
    config_file::read(path, &[Kind::Listen], &mut Fingerprints::default())
        .and_then(Setup::new)
        .map_err(|problems| problems.0)
}

/// Runs the checks of `peername proxy`; returns whether any failed.
async fn examine(checked: CheckedConfig) -> bool {
    let mut failed = false;
    let has_udp = checked.has(Transport::Udp);
    let mut note = |finding: Finding| failed |= report(&finding) == Verdict::Fail;
    match &checked.file {
        Some(path) => note(Finding::ok("configuration", path.display().to_string())),
        None if checked.backends.is_empty() => note(Finding::warn(
            "backend",
            "none is named, so none is checked",
            "`peername doctor --target ADDR:PORT`, or --config FILE",
        )),
        None => {}
    }
    for check in host::CHECKS {
        note(check());
    }
    note(host::open_files());
    note(backend::leftovers().await);
    note(host::firewall_marks::check().await);
    note(tproxy::listeners());
    tproxy::firewall().into_iter().for_each(&mut note);
    for &(transport, address) in &checked.listen {
        note(listener::can_be_opened(address, transport, "proxy"));
    }
    if has_udp {
        note(udp::receive_buffer());
        note(udp::data_path());
    }
    for &(backend, mark) in &checked.backends {
        let target = backend.address;
        if backend::lacks_family(target).await {
            note(Finding::ok("backend", format!("no {target} without IPv6")));
            continue;
        }
        let will_be_routed = match checked.sets_up_routes {
            true => backend::will_be_routed(backend).await,
            false => None,
        };
        // Without the rules, no reply comes back.
        let is_routed = will_be_routed.is_none();
        match will_be_routed {
            Some(finding) => note(finding),
            None => {
                note(backend::routed(backend, mark).await);
                note(backend::reply_path(backend).await);
            }
        }
        if target.port() == 0 {
            note(backend::port_of_clients(target));
            continue;
        }
        // The start exempts the backend from NAT, too.
        if is_routed {
            note(translation::check(backend, mark).await);
        }
        if backend.transport == Transport::Udp {
            note(udp::bound(target).await);
            continue;
        }
        let reachable = backend::reachable(target).await;
        let is_missing = reachable.verdict == Verdict::Fail;
        note(reachable);
        // The rest would only repeat that it is missing.
        if is_missing {
            continue;
        }
        if is_routed {
            note(backend::answers_spoofed_source(target, mark).await);
        }
        note(backend_listener::check(target).await);
    }
    failed
}

/// Runs the checks of `peername intercept`; returns whether any failed.
async fn examine_intercept(args: &intercept::Args) -> bool {
    let host = host::CHECKS_OF_INTERCEPT.into_iter().map(|check| check());
    let listen = listen_or(&args.listen, INTERCEPT_LISTEN).into_iter();
    let listeners =
        listen.map(|address| listener::can_be_opened(address, Transport::Tcp, "intercept"));
    let findings = args.findings().await;
    let files = host::open_files();
    report_all(host.chain([files]).chain(findings).chain(listeners))
}

/// Reports these findings; returns whether any is a failure.
fn report_all(findings: impl IntoIterator<Item = Finding>) -> bool {
    let verdicts = findings.into_iter().map(|finding| report(&finding));
    verdicts.max() == Some(Verdict::Fail)
}

fn report(finding: &Finding) -> Verdict {
    // A reader that closed the pipe has read enough; the verdict still counts.
    let _ = writeln!(stdout(), "{finding}");
    finding.verdict
}

/// The file of the packages' unit.
const PACKAGED_CONFIG: &str = "/etc/peername/proxy.toml";
const INTERCEPT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
