//! `peername proxy`: strips the header and connects to the backend as the client.

mod destination;
mod options;
mod privileges;
pub(crate) mod udp;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use peername_proxy::config::{Config, Datagrams};
use peername_proxy::counters::Counters;
use peername_proxy::destination::Listening;
use peername_proxy::own_addresses::OwnAddresses;
use peername_proxy::permit::Rules;
use peername_proxy::routes::{Backend, Keeper};
use peername_proxy::server::Bound;
use peername_proxy::tcp::TcpProxy;
use peername_proxy::udp::{DESCRIPTORS_OF_TRANSPARENT, UdpProxy, UdpSockets};
use peername_proxy::watchdog::ReplyPath;

pub(crate) use options::Args;

use crate::lifecycle::{self, Signals};
use crate::logging::{self, join};

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = Arc::new(args.config()?);
    lifecycle::block_on(start(args, config))
}

/// Opens what needs privilege, gives the privilege up, then serves until told to stop.
///
/// Capabilities belong to threads, so the log's and the workers' come after they are given up.
async fn start(args: &Args, config: Arc<Config>) -> anyhow::Result<ExitCode> {
    let signals = Signals::listen()?;
    let protocol = args.protocol();
    let mut bound = Bound::open(protocol.tcp(&config.listen), config.workers)?;
    let mut sessions = lifecycle::descriptors_of_sessions(config.workers, protocol.has_tcp())?;
    let mut workers = config.workers;
    if config.transparent {
        bound = bound.transparent()?;
        sessions = sessions.saturating_sub(DESCRIPTORS_OF_TRANSPARENT).max(1);
        workers = 1;
    }
    let datagrams = args.datagrams(sessions);
    let udp = protocol.udp(&config.listen);
    let mut udp = UdpSockets::open(udp, workers, Some(datagrams.dialect))?;
    if config.transparent {
        udp = udp.transparent()?;
    }
    let backends = protocol.backends(&targets(&config));
    let _keeper = match args.setup_routes {
        true => Some(Keeper::start(&backends)?),
        false => None,
    };
    privileges::reduce(config.upstream.mark)?;
    let _log = args.logging.start();
    privileges::warn_of_missing();
    udp.tell_of_shortcomings();
    serve(
        config,
        bound,
        (udp, datagrams),
        backends,
        signals,
        args.drain,
    )
    .await
}

/// Serves on the workers' threads; this thread keeps watch.
async fn serve(
    config: Arc<Config>,
    bound: Bound,
    (udp, datagrams): (UdpSockets, Datagrams),
    backends: Vec<Backend>,
    signals: Signals,
    drain: Duration,
) -> anyhow::Result<ExitCode> {
    let own_addresses = OwnAddresses::read().await?;
    let reply_path = Arc::new(ReplyPath::new(backends).marked(config.upstream.mark));
    reply_path.check().await;
    let counters = Arc::<Counters>::default();
    let (tcp_listen, udp_listen, workers) = (bound.addrs(), udp.addrs(), config.workers);
    let ports = tcp_listen.iter().chain(&udp_listen).map(SocketAddr::port);
    let rules = Arc::new(Rules {
        config: Arc::clone(&config),
        own_addresses: own_addresses.clone(),
        reply_path: Arc::clone(&reply_path),
        listening: Listening {
            ports: ports.collect(),
            transparent: config.transparent,
        },
    });
    let sessions = if udp_listen.is_empty() {
        0
    } else {
        datagrams.sessions
    };
    let beside = UdpProxy::new(Arc::clone(&rules), Arc::clone(&counters), datagrams)?;
    let proxy = TcpProxy::new(rules, Arc::clone(&counters))?;
    let capacity = lifecycle::capacity(workers, tcp_listen.len(), sessions)?;
    let running = bound
        .with(beside.companions(udp))
        .start(&Arc::new(proxy), capacity)
        .context("starting a worker thread")?;
    tracing::info!(
        tcp = join(&tcp_listen),
        udp = join(&udp_listen),
        target_v4 = %config.upstream.target_v4,
        target_v6 = %config.upstream.target_v6,
        workers,
        "listening"
    );
    tokio::spawn(async move { reply_path.keep_checking().await });
    tokio::spawn(keep_own_addresses(own_addresses));
    let code = signals.serve(running, drain).await;
    logging::totals(&counters.snapshot());
    code
}

async fn keep_own_addresses(own_addresses: OwnAddresses) {
    loop {
        let Err(error) = own_addresses.watch().await;
        tracing::warn!("can't follow this host's addresses: {error}; trying again");
        tokio::time::sleep(WATCH_AGAIN).await;
    }
}

fn targets(config: &Config) -> [SocketAddr; 2] {
    [config.upstream.target_v4.0, config.upstream.target_v6.0]
}

const WATCH_AGAIN: Duration = Duration::from_secs(5);
