//! `peername doctor`: checks this host, and prints a remedy for each problem.
//!
//! Each check is one function that returns one [`Finding`], and all checks run, whatever the others found: the first fault
//! is rarely the only one. A check tries the operation itself where it can (it connects, it binds a port) and reads
//! settings only where it can't.

mod backend;
mod backend_listener;
pub(crate) mod backend_probe;
mod confinement;
mod finding;
mod firewall_marks;
mod host;
#[cfg(feature = "intercept")]
mod intercept;
#[cfg(not(feature = "intercept"))]
#[path = "doctor/no_intercept.rs"]
mod intercept;
mod listener;
mod observe;
mod readiness;
mod tproxy;
mod translation;
mod udp;

use std::io::{Write, stdout};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use peername_daemon::listeners::{ListenPlan, expected_connections};
use peername_daemon::process::default_workers;
use peername_daemon::reload::file_watch::Fingerprints;
use peername_daemon::value;
use peername_proxy::routes::Backend;
use peername_sys::netlink::Transport;

use super::proxy::setup::Setup;
use super::routes::BackendArgs;
use crate::config_file::{self, Kind};
use finding::{Finding, Verdict};

/// Options of `peername doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    backends: BackendArgs,
    /// The address that the proxy will listen on; may be repeated [default: 0.0.0.0:8443, with --intercept 127.0.0.1:8080]
    #[arg(short, long, value_name = "ADDR", value_parser = value::address)]
    listen: Vec<SocketAddr>,
    #[command(flatten)]
    intercept: intercept::Args,
    #[command(flatten)]
    confinement: confinement::Args,
    #[command(flatten)]
    readiness: readiness::Args,
    /// Check the listeners and backends of this configuration file instead of those of the options
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

impl Args {
    /// The addresses given, or `default`.
    fn listen_or(&self, default: SocketAddr) -> Vec<SocketAddr> {
        match self.listen.as_slice() {
            [] => vec![default],
            given => given.to_vec(),
        }
    }
}

/// Prints one line for each check. Exits with 3 if any check failed.
///
/// # Errors
///
/// The runtime can't be started. Failed checks are findings, not errors.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let failed = runtime.block_on(async {
        match args.observe {
            Some(address) => {
                report(&observe::first_bytes(address, args.observe_for).await) == Verdict::Fail
            }
            None if args.readiness.is_given() => report_all(args.readiness.finding().await),
            None if args.intercept.is_given() => examine_intercept(args).await,
            None => match CheckedConfig::of(args) {
                Ok(_) if args.confinement.is_given() => report_all(args.confinement.findings()),
                Ok(checked) => examine(checked).await,
                Err(problems) => {
                    let wrong =
                        |problem| Finding::fail("configuration", problem, "see docs/config.md");
                    report_all(problems.into_iter().map(wrong))
                }
            },
        }
    });
    Ok(if failed {
        ExitCode::from(EXIT_PROBLEM_FOUND)
    } else {
        ExitCode::SUCCESS
    })
}

/// The listeners and backends to check, beside the host.
struct CheckedConfig {
    listen: Vec<(Transport, SocketAddr)>,
    /// Each with the firewall mark of connections to it.
    backends: Vec<(Backend, u32)>,
    /// Whether the start adds the rules and routes that the backends need.
    sets_up_routes: bool,
    /// The limit of open TCP connections.
    connections: anyhow::Result<usize>,
}

impl CheckedConfig {
    /// Reads the configuration file, if one is named, else the options.
    ///
    /// # Errors
    ///
    /// All errors in the file.
    fn of(args: &Args) -> Result<Self, Vec<String>> {
        if let Some(path) = &args.config {
            let setup = config_file::read(path, &[Kind::Listen], &mut Fingerprints::default())
                .and_then(Setup::new)
                .map_err(|problems| problems.0)?;
            let listen = setup.all_listeners().collect();
            let backends = setup.probes().map(|probe| {
                let mark = probe.mark.map_or(0, NonZeroU32::get);
                (probe.backend, mark)
            });
            return Ok(Self {
                listen,
                backends: backends.collect(),
                sets_up_routes: setup.sets_up_routes(),
                connections: setup.expected_connections(),
            });
        }
        let transports = args.backends.transports().iter();
        let listen = transports.flat_map(|&transport| {
            let addresses = args.listen_or(PROXY_LISTEN).into_iter();
            addresses.map(move |address| (transport, address))
        });
        let backends = args
            .backends
            .backends()
            .map_err(|problems| vec![problems.to_string()])?
            .into_iter();
        let listen: Vec<_> = listen.collect();
        let of = |wanted| {
            let wanted = listen
                .iter()
                .filter(move |(transport, _)| *transport == wanted);
            wanted.map(|&(_, address)| address).collect()
        };
        let plan = ListenPlan {
            tcp: of(Transport::Tcp),
            udp: of(Transport::Udp),
            ..ListenPlan::default()
        };
        Ok(Self {
            connections: expected_connections(default_workers(), &[plan]),
            listen,
            backends: backends.map(|backend| (backend, args.mark)).collect(),
            sets_up_routes: false,
        })
    }

    fn has_udp(&self) -> bool {
        let listen = self.listen.iter().map(|(transport, _)| *transport);
        let backends = self.backends.iter().map(|(backend, _)| backend.transport);
        listen
            .chain(backends)
            .any(|transport| transport == Transport::Udp)
    }
}

/// Runs the checks of `peername proxy`; returns whether any failed.
async fn examine(checked: CheckedConfig) -> bool {
    let mut failed = false;
    let has_udp = checked.has_udp();
    let mut note = |finding: Finding| failed |= report(&finding) == Verdict::Fail;
    for check in host::CHECKS {
        note(check());
    }
    note(host::open_files(checked.connections));
    note(backend::leftovers().await);
    note(firewall_marks::check().await);
    note(tproxy::listeners());
    tproxy::firewall().into_iter().for_each(&mut note);
    for &(transport, address) in &checked.listen {
        note(listener::can_be_opened(address, transport));
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
        // The start exempts the backend from NAT, too.
        if is_routed {
            note(translation::check(backend, mark).await);
        }
        if backend.transport == Transport::Udp {
            note(udp::bound(target).await);
            continue;
        }
        note(backend::reachable(target).await);
        if is_routed {
            note(backend::answers_spoofed_source(target, mark).await);
        }
        note(backend_listener::check(target).await);
    }
    failed
}

/// Runs the checks of `peername intercept`; returns whether any failed.
async fn examine_intercept(args: &Args) -> bool {
    let host = host::CHECKS_OF_INTERCEPT.into_iter().map(|check| check());
    let listen = args.listen_or(INTERCEPT_LISTEN).into_iter();
    let listeners = listen.map(|address| listener::can_be_opened(address, Transport::Tcp));
    let findings = args.intercept.findings().await;
    let files = host::open_files(intercept::expected_connections());
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

const PROXY_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8443);
const INTERCEPT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// Exit code of `doctor` and `config check`, part of the command line's contract.
const EXIT_PROBLEM_FOUND: u8 = 3;
