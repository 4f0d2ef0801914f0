//! `peername proxy`: strips the header and connects to the backend as the client.

mod options;
mod privileges;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use peername_proxy::config::Config;
use peername_proxy::counters::{Counters, Snapshot};
use peername_proxy::own_addresses::OwnAddresses;
use peername_proxy::routes::Keeper;
use peername_proxy::server::Bound;
use peername_proxy::tcp::TcpProxy;
use peername_proxy::watchdog::ReplyPath;

pub(crate) use options::Args;

use crate::lifecycle::{self, Signals};
use crate::logging::join;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = Arc::new(args.config()?);
    lifecycle::block_on(start(args, config))
}

/// Opens what needs privilege, gives the privilege up, then serves until told to stop.
///
/// Capabilities belong to threads, so the log's and the workers' come after they are given up.
async fn start(args: &Args, config: Arc<Config>) -> anyhow::Result<ExitCode> {
    let signals = Signals::listen()?;
    let bound = Bound::open(&config.listen, config.workers)?;
    let _keeper = match args.setup_routes {
        true => Some(Keeper::start(&targets(&config))?),
        false => None,
    };
    privileges::reduce(config.upstream.mark)?;
    let _log = args.logging.start();
    privileges::warn_of_missing();
    serve(config, bound, signals, args.drain).await
}

/// Serves on the workers' threads; this thread keeps watch.
async fn serve(
    config: Arc<Config>,
    bound: Bound,
    signals: Signals,
    drain: Duration,
) -> anyhow::Result<ExitCode> {
    let own_addresses = OwnAddresses::read().await?;
    let reply_path = Arc::new(ReplyPath::new([
        config.upstream.target_v4,
        config.upstream.target_v6,
    ]));
    reply_path.check().await;
    let counters = Arc::<Counters>::default();
    let (listen, workers) = (bound.addrs(), config.workers);
    let proxy = TcpProxy::new(
        Arc::clone(&config),
        Arc::clone(&counters),
        own_addresses.clone(),
        Arc::clone(&reply_path),
    )?;
    let capacity = lifecycle::capacity(workers, listen.len())?;
    let running = bound
        .start(&Arc::new(proxy), capacity)
        .context("starting a worker thread")?;
    tracing::info!(
        listen = join(&listen),
        target_v4 = %config.upstream.target_v4,
        target_v6 = %config.upstream.target_v6,
        workers,
        "listening"
    );
    tokio::spawn(async move { reply_path.keep_checking().await });
    tokio::spawn(keep_own_addresses(own_addresses));
    let code = signals.serve(running, drain).await;
    log_totals(&counters.snapshot());
    code
}

async fn keep_own_addresses(own_addresses: OwnAddresses) {
    loop {
        let Err(error) = own_addresses.watch().await;
        tracing::warn!("can't follow this host's addresses: {error}; trying again");
        tokio::time::sleep(WATCH_AGAIN).await;
    }
}

fn targets(config: &Config) -> [std::net::SocketAddr; 2] {
    [config.upstream.target_v4.0, config.upstream.target_v6.0]
}

const WATCH_AGAIN: Duration = Duration::from_secs(5);

fn log_totals(totals: &Snapshot) {
    let outcomes = totals
        .outcomes
        .iter()
        .map(|(name, count)| format!("{name}={count}"));
    tracing::info!(
        connections = totals.accepted,
        bytes_to_upstream = totals.to_upstream,
        bytes_to_downstream = totals.to_downstream,
        bytes_undelivered = totals.undelivered,
        port_collisions = totals.collisions,
        outcomes = join(outcomes),
        "stopped"
    );
}
