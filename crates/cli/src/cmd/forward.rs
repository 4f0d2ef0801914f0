//! `peername forward`: the sending side, for sites whose balancer can't write the header.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use peername_proxy::addr::Target;
use peername_proxy::counters::Counters;
use peername_proxy::forward::{Announcement, Forwarder};
use peername_proxy::server::Bound;
use peername_sys::caps::keep_only;

use crate::cmd::send::Header;
use crate::lifecycle::{self, Signals};
use crate::usage::Usage;
use crate::{logging, value};

/// Options of `peername forward`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to listen; may be repeated
    #[arg(short, long, value_name = "ADDR", required = true, value_parser = value::address)]
    listen: Vec<SocketAddr>,
    /// Who gets the header and the connection
    #[arg(long, value_name = "ADDR", value_parser = value::address)]
    to: SocketAddr,
    #[command(flatten)]
    header: Header,
    /// From the first SYN to an established connection
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = value::duration)]
    connect_timeout: Duration,
    /// Event loops
    #[arg(long, value_name = "N", default_value = "1")]
    workers: NonZeroUsize,
    /// How long open connections may go on after SIGTERM; a second SIGTERM ends them
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = value::duration)]
    drain: Duration,
    #[command(flatten)]
    logging: logging::Args,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.listen.contains(&args.to) {
        return Err(Usage(format!("--to {}: it would connect to itself", args.to)).into());
    }
    let announcement = args.header.announcement()?;
    lifecycle::block_on(start(args, announcement))
}

async fn start(args: &Args, announcement: Announcement) -> anyhow::Result<ExitCode> {
    let signals = Signals::listen()?;
    let workers = args.workers.get();
    let bound = Bound::open(&args.listen, workers)?;
    // It connects as itself: no privilege is of use any more.
    keep_only(&[])?;
    let _log = args.logging.start();
    let addrs = bound.addrs();
    let forwarder = Forwarder {
        target: Target(args.to),
        announcement,
        connect_timeout: args.connect_timeout,
        counters: Arc::<Counters>::default(),
    };
    let capacity = lifecycle::capacity(workers, addrs.len())?;
    let running = bound
        .start(&Arc::new(forwarder), capacity)
        .context("starting a worker thread")?;
    tracing::info!(listen = logging::join(&addrs), to = %args.to, "listening");
    signals.serve(running, args.drain).await
}
