//! `peername routes`: the policy routing rules and routes that deliver a backend's replies to this host.

mod filter_options;
pub(crate) mod target_args;

use std::collections::BTreeSet;
use std::io::{self, Write, stdout};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::process::ExitCode;

use peername_daemon::command::block_on;
use peername_daemon::usage::Usage;
use peername_proxy::config::TargetRule;
use peername_proxy::routes::{self, Backend, RoutingEntry, Scope};
use peername_sys::Transport;

/// Options of `peername routes`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Example:\n  peername routes add --target 127.0.0.1:8080")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the rules and routes of peername, in the syntax of ip-rule(8) and ip-route(8).
    #[command(before_help = "Example:\n  peername routes show")]
    Show,
    /// Add the rules and routes that these backends need; they stay until they are removed or until the next boot. Without
    /// --target they apply to all backends on loopback.
    #[command(before_help = "Example:\n  peername routes add --target 127.0.0.1:8080")]
    Add {
        #[command(flatten)]
        backends: BackendArgs,
        #[command(flatten)]
        filter: filter_options::Args,
    },
    /// Remove the rules and routes that `add` created and those that a killed proxy left behind.
    #[command(before_help = "Example:\n  peername routes remove")]
    Remove {
        /// Remove those of running proxies, too. Their clients are refused until a proxy with `--setup-routes` has restored its own,
        /// which takes seconds, or until they are added again.
        #[arg(long)]
        all: bool,
    },
    /// Hold rules and routes until standard input ends (started by `proxy --setup-routes`).
    #[command(hide = true)]
    Keep {
        /// A backend.
        #[arg(long = "target", required = true)]
        targets: Vec<Backend>,
        /// A mark of connections to backends on other hosts.
        #[arg(long = "mark")]
        marks: Vec<NonZeroU32>,
    },
}

/// The options that name backends, as `peername proxy` has them, and their protocol; also of `peername doctor`.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub(crate) struct BackendArgs {
    #[command(flatten)]
    targets: target_args::Args,
    /// The protocol of the backends
    #[arg(short, long, default_value = "tcp")]
    pub(super) protocol: Protocol,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Both,
}

impl Protocol {
    pub(super) fn transports(self) -> &'static [Transport] {
        match self {
            Self::Tcp => &[Transport::Tcp],
            Self::Udp => &[Transport::Udp],
            Self::Both => &[Transport::Tcp, Transport::Udp],
        }
    }

    pub(crate) fn has_tcp(self) -> bool {
        matches!(self, Self::Tcp | Self::Both)
    }

    pub(crate) fn has_udp(self) -> bool {
        matches!(self, Self::Udp | Self::Both)
    }

    /// The addresses to listen on for TCP: all or none.
    pub(crate) fn tcp(self, listen: &[SocketAddr]) -> &[SocketAddr] {
        if self.has_tcp() { listen } else { &[] }
    }

    /// The addresses to listen on for UDP: all or none.
    pub(crate) fn udp(self, listen: &[SocketAddr]) -> &[SocketAddr] {
        if self.has_udp() { listen } else { &[] }
    }

    /// A backend for each address and protocol.
    pub(crate) fn backends(self, addresses: &[SocketAddr]) -> Vec<Backend> {
        self.transports()
            .iter()
            .flat_map(|&transport| {
                addresses
                    .iter()
                    .map(move |&address| Backend { address, transport })
            })
            .collect()
    }
}

impl BackendArgs {
    /// The backends that are named, IPv4 first, with each protocol. Port 0 stands for all ports.
    ///
    /// # Errors
    ///
    /// Those of [`target_args::Args::targets`]; or a backend on another host has port `same`.
    pub(crate) fn backends(&self) -> Result<Vec<Backend>, Usage> {
        let targets = self.targets.targets()?;
        let addresses: Result<Vec<_>, _> = targets.iter().map(rule_address).collect();
        Ok(self.protocol.backends(&addresses?))
    }

    /// As [`BackendArgs::backends`], for a proxy with these listeners: a backend with port `same` has each of their ports, or
    /// port 0 without listeners.
    ///
    /// # Errors
    ///
    /// Those of [`target_args::Args::targets`].
    pub(crate) fn backends_for_listeners(
        &self,
        listen: &[SocketAddr],
    ) -> Result<Vec<Backend>, Usage> {
        let ports: BTreeSet<u16> = match listen {
            [] => BTreeSet::from([0]),
            listen => listen.iter().map(SocketAddr::port).collect(),
        };
        let targets = self.targets.targets()?;
        let mut addresses = Vec::new();
        for target in targets.iter() {
            match target {
                TargetRule::Fixed(target) => addresses.push(target.0),
                TargetRule::SamePort(ip) => {
                    addresses.extend(ports.iter().map(|&port| SocketAddr::new(ip, port)));
                }
            }
        }
        Ok(self.protocol.backends(&addresses))
    }

    /// As [`BackendArgs::backends`]; if no backend is named, all ports of loopback in both families.
    fn backends_or_loopback(&self) -> Result<Vec<Backend>, Usage> {
        let named = self.backends()?;
        if !named.is_empty() {
            return Ok(named);
        }
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        Ok(self
            .protocol
            .backends(&loopback.map(|ip| SocketAddr::new(ip, 0))))
    }
}

/// The address that the rules of a target are for.
fn rule_address(target: TargetRule) -> Result<SocketAddr, Usage> {
    match target {
        TargetRule::Fixed(target) => Ok(target.0),
        TargetRule::SamePort(ip) if ip.is_loopback() => Ok(SocketAddr::new(ip, 0)),
        TargetRule::SamePort(_) => Err(Usage(format!(
            "--target {target}: rules for a backend that is not on loopback are for one port each; name it"
        ))),
    }
}

/// Runs `peername routes`.
///
/// # Errors
///
/// What failed at netlink, nft(8) or standard output; where the privilege is missing, with the command to run as root.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Show => block_on(show())?,
        Action::Add { backends, filter } => {
            let hint = "run `peername routes add` with these options as root";
            block_on(add(backends, filter)).map_err(|error| advise(error, hint))?;
        }
        Action::Remove { all } => {
            let hint = if *all {
                "run `peername routes remove --all` as root"
            } else {
                "run `peername routes remove` as root"
            };
            block_on(remove(*all)).map_err(|error| advise(error, hint))?;
        }
        Action::Keep { targets, marks } => return Ok(routes::run_keeper(targets, marks)?),
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds `hint` to an error about a missing privilege.
fn advise(error: anyhow::Error, hint: &str) -> anyhow::Error {
    match error.downcast_ref() {
        Some(routes::Error::Permission(_)) => anyhow::anyhow!("{error}; {hint}"),
        _ => error,
    }
}

async fn show() -> anyhow::Result<()> {
    print("", &routes::list().await?)?;
    print_tables("", routes::list_filters())
}

async fn add(args: &BackendArgs, filter: &filter_options::Args) -> anyhow::Result<()> {
    let mut backends = args.backends_or_loopback()?;
    if filter.is_for_other_hosts() {
        backends = routes::local_backends(backends).await?;
    }
    for target in routes::add(&backends).await? {
        eprintln!("peername: left out {target}: this host has no IPv6");
    }
    if let Err(error) = routes::add_untracked().await {
        eprintln!(
            "peername: NAT rules of this host apply to connections to backends, too: {error}"
        );
    }
    for rules in filter.filter_rules(args.protocol.transports()) {
        routes::add_filter(&rules).await?;
    }
    show().await
}

async fn remove(all: bool) -> anyhow::Result<()> {
    let scope = if all { Scope::All } else { Scope::Idle };
    let removed = routes::remove(scope).await?;
    print("removed ", &removed)?;
    print_tables("removed ", routes::remove_filters(scope).await)?;
    if removed.is_empty() && !all && !routes::list().await?.is_empty() {
        eprintln!(
            "peername: the rules and routes that remain belong to running proxies: --all removes them, too"
        );
    }
    Ok(())
}

/// Prints the packet filter's tables, or a note if the privilege to list them is missing: then peername has added none either.
fn print_tables(
    prefix: &str,
    tables: Result<Vec<RoutingEntry>, routes::Error>,
) -> anyhow::Result<()> {
    match tables {
        Err(error @ routes::Error::NftPermission) => eprintln!("peername: {error}"),
        tables => print(prefix, &tables?)?,
    }
    Ok(())
}

fn print(prefix: &str, entries: &[RoutingEntry]) -> io::Result<()> {
    let mut out = stdout();
    for entry in entries {
        // A table has a line for each of its rules.
        for line in entry.to_string().lines() {
            writeln!(out, "{prefix}{line}  # {}", entry.owner)?;
        }
    }
    Ok(())
}
