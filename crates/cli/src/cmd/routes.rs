//! `peername routes`: the policy routing rules and routes that deliver a backend's replies to this host.

mod filter_options;

use std::io::{self, Write, stdout};
use std::num::NonZeroU32;
use std::process::ExitCode;

use peername_daemon::command::block_on;
use peername_proxy::routes::{self, Backend, RoutingEntry, Scope};
use peername_sys::process::stderr::write_line;

use crate::jail_note::note_jail;
use crate::options::backend_args::BackendArgs;

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

/// Runs `peername routes`.
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

/// Adds `hint` to an error about a missing privilege, or for root the capability that it lacks.
fn advise(error: anyhow::Error, hint: &str) -> anyhow::Error {
    note_jail(match error.downcast_ref() {
        Some(routes::Error::Permission(_) | routes::Error::NftPermission) => {
            anyhow::anyhow!("{error}; {}", routes::permission_advice(hint))
        }
        _ => error,
    })
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
        write_line(format_args!(
            "peername: left out {target}: this host has no IPv6"
        ));
    }
    if let Err(error) = routes::add_untracked().await {
        write_line(format_args!(
            "peername: NAT rules of this host apply to connections to backends, too: {error}"
        ));
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
        write_line(
            "peername: the rules and routes that remain belong to running proxies: --all removes them, too",
        );
    }
    Ok(())
}

/// Prints the packet filter's tables, or a note if the privilege to list them is missing.
fn print_tables(
    prefix: &str,
    tables: Result<Vec<RoutingEntry>, routes::Error>,
) -> anyhow::Result<()> {
    match tables {
        Err(error @ routes::Error::NftPermission) => {
            let advice = routes::permission_advice("run this as root to include them");
            write_line(format_args!("peername: {error}; {advice}"));
        }
        tables => print(prefix, &tables?)?,
    }
    Ok(())
}

fn print(prefix: &str, entries: &[RoutingEntry]) -> io::Result<()> {
    let mut out = stdout();
    for entry in entries {
        let family = if entry.is_mark_of_ipv6() {
            "IPv6, "
        } else {
            ""
        };
        // A table has a line for each of its rules.
        for line in entry.to_string().lines() {
            writeln!(out, "{prefix}{line}  # {family}{}", entry.owner)?;
        }
    }
    Ok(())
}
