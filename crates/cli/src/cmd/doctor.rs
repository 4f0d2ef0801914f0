//! `peername doctor`: checks this host, and says how to mend what is wrong.
//!
//! Each check is one function that returns one [`Finding`], and all of them run whatever the others
//! found: the first fault is rarely the only one. A check looks at the thing itself where it can (a
//! connection is made, a port is bound) and at settings only where it can't.

mod backend;
mod bound;
mod finding;
mod host;
mod listener;
mod marks;
mod observe;
mod probe;
mod tproxy;
mod udp;

use std::io::{Write, stdout};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use peername_sys::netlink::Transport;

use super::routes::Targets;
use crate::value;
use finding::{Finding, Verdict};

pub(crate) use probe::{Probe, Reached};

/// Options of `peername doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    targets: Targets,
    /// Where the proxy is to listen; may be repeated.
    #[arg(short, long, value_name = "ADDR", default_value = "0.0.0.0:8443", value_parser = value::address)]
    listen: Vec<SocketAddr>,
    /// The mark of the proxy's connections to backends on other hosts
    #[arg(short, long, value_name = "N", default_value = "0", value_parser = value::mark)]
    mark: u32,
    /// Instead of the checks: listen here and tell what the first connection begins with.
    #[arg(long, value_name = "ADDR", value_parser = value::address, conflicts_with_all = ["listen", "target_v4", "target_v6"])]
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

/// Prints one line a check. Exits with 3 when any of them failed.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let failed = runtime.block_on(async {
        match args.observe {
            Some(address) => {
                report(&observe::first_bytes(address, args.observe_for).await) == Verdict::Fail
            }
            None => examine(args).await,
        }
    });
    Ok(if failed {
        ExitCode::from(PROBLEM_FOUND)
    } else {
        ExitCode::SUCCESS
    })
}

/// Whether anything failed.
async fn examine(args: &Args) -> bool {
    let mut failed = false;
    let mut note = |finding: Finding| failed |= report(&finding) == Verdict::Fail;
    for check in host::CHECKS {
        note(check());
    }
    note(backend::leftovers().await);
    note(marks::marks().await);
    note(tproxy::listeners());
    for &transport in args.targets.transports() {
        for &address in &args.listen {
            note(listener::can_be_opened(address, transport));
        }
    }
    if args.targets.transports().contains(&Transport::Udp) {
        note(udp::receive_buffer());
    }
    for of_target in args.targets.named() {
        let target = of_target.address;
        if backend::lacks_family(target).await {
            note(Finding::ok("backend", format!("no {target} without IPv6")));
            continue;
        }
        note(backend::routed(of_target, args.mark).await);
        note(backend::reply_path(of_target).await);
        if of_target.transport == Transport::Udp {
            note(udp::bound(target).await);
            continue;
        }
        note(backend::reachable(target).await);
        note(backend::answers_a_stranger(target, args.mark).await);
        note(bound::bound(target).await);
    }
    failed
}

fn report(finding: &Finding) -> Verdict {
    // Whoever closes the pipe has seen enough; the verdict still counts.
    let _ = writeln!(stdout(), "{finding}");
    finding.verdict
}

/// The command line's contract for `doctor` and `config check`.
const PROBLEM_FOUND: u8 = 3;
