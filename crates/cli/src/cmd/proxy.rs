//! `peername proxy`: strips the header and connects to the backend as the client.

mod options;
mod privileges;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use peername_proxy::config::Config;
use peername_proxy::counters::Counters;
use peername_proxy::own_addresses::OwnAddresses;
use peername_proxy::routes::Keeper;
use peername_proxy::server::{Bound, Sockets};
use peername_proxy::tcp::TcpProxy;
use peername_proxy::watchdog::ReplyPath;
use peername_sys::limits::raise_open_files;
use tokio::runtime;

pub(crate) use options::Args;

use crate::lifecycle;

/// Opens what needs privilege, gives the privilege up, then serves until told to stop.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = Arc::new(args.config()?);
    let _log = args.logging.start();
    privileges::check(&config)?;
    let bound = Bound::open(&sockets(&config)?)?;
    let _keeper = if args.setup_routes {
        Some(Keeper::start(&targets(&config))?)
    } else {
        None
    };
    privileges::drop_all_but_needed()?;
    runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the control runtime")?
        .block_on(serve(config, bound, args.drain))
}

/// Serves on the workers' threads; this thread keeps watch.
async fn serve(config: Arc<Config>, bound: Bound, drain: Duration) -> anyhow::Result<ExitCode> {
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
    );
    let running = bound
        .start(&Arc::new(proxy))
        .context("starting a worker thread")?;
    tracing::info!(
        listen = ?listen,
        target_v4 = %config.upstream.target_v4,
        target_v6 = %config.upstream.target_v6,
        workers,
        "listening"
    );
    tokio::spawn(async move { reply_path.keep_checking().await });
    tokio::spawn(keep_own_addresses(own_addresses));
    let code = lifecycle::until_told_to_stop(running, drain).await;
    tracing::info!(counters = ?counters.snapshot(), "stopped");
    code
}

async fn keep_own_addresses(own_addresses: OwnAddresses) {
    loop {
        let Err(error) = own_addresses.watch().await;
        tracing::warn!("can't follow this host's addresses: {error}; trying again");
        tokio::time::sleep(WATCH_AGAIN).await;
    }
}

fn sockets(config: &Config) -> anyhow::Result<Sockets> {
    let files = raise_open_files()?;
    // Listeners, epoll, log and the relay's first pipes need some; each connection needs two.
    let reserve = RESERVED_FILES.min(files / 4);
    let connections = usize::try_from((files - reserve) / 2)?;
    Ok(Sockets {
        listen: config.listen.clone(),
        workers: config.workers,
        connections,
    })
}

fn targets(config: &Config) -> [std::net::SocketAddr; 2] {
    [config.upstream.target_v4.0, config.upstream.target_v6.0]
}

const RESERVED_FILES: u64 = 64;
const WATCH_AGAIN: Duration = Duration::from_secs(5);
