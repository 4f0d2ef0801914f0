//! `peername routes`: the policy routing rules and routes that deliver a backend's replies to this host.

use std::io::{self, Write, stdout};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::process::ExitCode;

use peername_proxy::routes::{self, Backend, RoutingEntry, Scope};
use peername_sys::netlink::Transport;

use peername_daemon::value;

mod filter_options;

/// Options of `peername routes`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the rules and routes of peername, in the syntax of ip-rule(8) and ip-route(8).
    Show,
    /// Add the rules and routes that these backends need; they stay until they are removed or until the next boot. Without
    /// `-4` and `-6` they apply to all backends on loopback.
    Add {
        #[command(flatten)]
        targets: Targets,
        #[command(flatten)]
        catch: filter_options::Args,
    },
    /// Remove the rules and routes that `add` created and those that a killed proxy left behind.
    Remove {
        /// Also those of running proxies, which then stop working.
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

/// The options that name backends, as `peername proxy` has them; also of `peername doctor`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Targets {
    /// The backend of IPv4 clients [default: `127.0.0.1:443`]
    #[arg(short = '4', long, value_name = "ADDR", value_parser = value::address_v4)]
    target_v4: Option<SocketAddr>,
    /// The backend of IPv6 clients [default: `[::1]:443`]
    #[arg(short = '6', long, value_name = "ADDR", value_parser = value::address_v6)]
    target_v6: Option<SocketAddr>,
    /// The protocol of the backends
    #[arg(short, long, default_value = "tcp")]
    protocol: Protocol,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Both,
}

impl Protocol {
    fn transports(self) -> &'static [Transport] {
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
        let with_transport = |&transport: &Transport| {
            addresses
                .iter()
                .map(move |&address| Backend { address, transport })
        };
        self.transports().iter().flat_map(with_transport).collect()
    }
}

impl Targets {
    /// The default backend of IPv4 clients.
    pub(crate) const DEFAULT_V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 443);
    /// The default backend of IPv6 clients.
    pub(crate) const DEFAULT_V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 443);

    /// The backends' transports.
    pub(crate) fn transports(&self) -> &'static [Transport] {
        self.protocol.transports()
    }

    /// The backends of both families, IPv4 first, with each protocol.
    pub(crate) fn all(&self) -> Vec<Backend> {
        let v4 = self.target_v4.unwrap_or(Self::DEFAULT_V4);
        let v6 = self.target_v6.unwrap_or(Self::DEFAULT_V6);
        self.protocol.backends(&[v4, v6])
    }

    /// As [`Targets::all`] where one was named, else all ports of loopback, in both families.
    fn all_or_loopback(&self) -> Vec<Backend> {
        if self.target_v4.is_some() || self.target_v6.is_some() {
            return self.all();
        }
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        self.protocol
            .backends(&loopback.map(|ip| SocketAddr::new(ip, 0)))
    }

    /// The backends that were named, or those of both families if none was.
    pub(crate) fn named(&self) -> Vec<Backend> {
        let named: Vec<_> = self.target_v4.into_iter().chain(self.target_v6).collect();
        match named.as_slice() {
            [] => self.all(),
            named => self.protocol.backends(named),
        }
    }
}

/// # Errors
///
/// What failed at netlink, nft(8) or standard output; where the privilege is missing, with the command to run as root.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Show => block_on(show())?,
        Action::Add { targets, catch } => {
            let hint = "run `peername routes add` with these options as root";
            block_on(add(targets, catch)).map_err(|error| advise(error, hint))?;
        }
        Action::Remove { all } => {
            let hint = match all {
                true => "run `peername routes remove --all` as root",
                false => "run `peername routes remove` as root",
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

async fn add(targets: &Targets, catch: &filter_options::Args) -> anyhow::Result<()> {
    let mut backends = targets.all_or_loopback();
    if catch.is_for_other_hosts() {
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
    for catch in catch.filter_rules(targets.transports()) {
        routes::add_filter(&catch).await?;
    }
    show().await
}

async fn remove(all: bool) -> anyhow::Result<()> {
    let scope = if all { Scope::All } else { Scope::Idle };
    print("removed ", &routes::remove(scope).await?)?;
    print_tables("removed ", routes::remove_filters(scope).await)
}

fn block_on(action: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(action)
}

/// Prints the packet filter's tables. Without the privilege to list them this prints a note and does not fail: without it
/// peername has added none either.
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
    let text: Vec<String> = entries.iter().map(RoutingEntry::to_string).collect();
    let lines = text.iter().zip(entries).flat_map(|(text, entry)| {
        // A table has a line for each of its rules.
        text.lines().map(move |line| (line, entry.owner))
    });
    for (line, owner) in lines {
        writeln!(out, "{prefix}{line}  # {owner}")?;
    }
    Ok(())
}
