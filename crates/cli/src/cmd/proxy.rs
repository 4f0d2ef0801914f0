//! `peername proxy`: strips the header and connects to the backend as the client.

mod descriptors;
mod options;
mod privileges;
pub(crate) mod udp;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use peername_proxy::config::{Config, Datagrams};
use peername_proxy::counters::Counters;
use peername_proxy::own_addresses::OwnAddresses;
use peername_proxy::permit::Rules;
use peername_proxy::routes::Keeper;
use peername_proxy::server::{Bound, Sockets};
use peername_proxy::tcp::TcpProxy;
use peername_proxy::udp::{UdpProxy, UdpSockets};
use peername_proxy::watchdog::ReplyPath;
use tokio::runtime;

pub(crate) use descriptors::Descriptors;
pub(crate) use options::{Args, Protocol};

use crate::lifecycle::{Signals, until_told_to_stop};

/// Opens what needs privilege, gives the privilege up, then serves until told to stop.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = Arc::new(args.config()?);
    let _log = args.logging.start();
    privileges::check(&config)?;
    let descriptors = Descriptors::share_out(args.protocol)?;
    let datagrams = args.datagrams(descriptors.sessions);
    let bound = Bound::open(&sockets(&config, args.protocol, descriptors.connections))?;
    let udp = UdpSockets::open(
        if args.protocol.has_udp() {
            &config.listen
        } else {
            &[]
        },
        config.workers,
        Some(datagrams.dialect),
    )?;
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
        .block_on(serve(config, bound, udp, datagrams, args.drain))
}

/// Serves on the workers' threads; this thread keeps watch.
async fn serve(
    config: Arc<Config>,
    bound: Bound,
    udp: UdpSockets,
    datagrams: Datagrams,
    drain: Duration,
) -> anyhow::Result<ExitCode> {
    let signals = Signals::catch()?;
    let own_addresses = OwnAddresses::read().await?;
    let reply_path = Arc::new(ReplyPath::new([
        config.upstream.target_v4,
        config.upstream.target_v6,
    ]));
    reply_path.check().await;
    let counters = Arc::<Counters>::default();
    let rules = Arc::new(Rules {
        config: Arc::clone(&config),
        own_addresses: own_addresses.clone(),
        reply_path: Arc::clone(&reply_path),
    });
    let (listen, listen_udp, workers) = (bound.addrs(), udp.addrs(), config.workers);
    let beside = UdpProxy::new(Arc::clone(&rules), Arc::clone(&counters), datagrams);
    let proxy = TcpProxy::new(rules, Arc::clone(&counters));
    let running = bound
        .with(beside.companions(udp))
        .start(&Arc::new(proxy))
        .context("starting a worker thread")?;
    tracing::info!(
        tcp = ?listen,
        udp = ?listen_udp,
        target_v4 = %config.upstream.target_v4,
        target_v6 = %config.upstream.target_v6,
        workers,
        "listening"
    );
    tokio::spawn(async move { reply_path.keep_checking().await });
    tokio::spawn(keep_own_addresses(own_addresses));
    let code = until_told_to_stop(signals, running, drain).await;
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

fn sockets(config: &Config, protocol: Protocol, connections: usize) -> Sockets {
    Sockets {
        listen: if protocol.has_tcp() {
            config.listen.clone()
        } else {
            Vec::new()
        },
        workers: config.workers,
        connections,
    }
}

fn targets(config: &Config) -> [std::net::SocketAddr; 2] {
    [config.upstream.target_v4.0, config.upstream.target_v6.0]
}

const WATCH_AGAIN: Duration = Duration::from_secs(5);
