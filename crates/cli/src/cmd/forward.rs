//! `peername forward`: the sending side, for sites whose balancer can't write the header.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use peername_proxy::addr::Target;
use peername_proxy::config::Dialect;
use peername_proxy::counters::Counters;
use peername_proxy::forward::Forwarder;
use peername_proxy::server::{Bound, Sockets};
use peername_proxy::udp::{UdpForwarder, UdpSockets};
use tokio::runtime;

use crate::cmd::proxy::{self, Descriptors, udp};
use crate::cmd::send::Header;
use crate::lifecycle::{Signals, until_told_to_stop};
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
    /// What is forwarded
    #[arg(short, long, default_value = "tcp")]
    protocol: Protocol,
    #[command(flatten)]
    header: Header,
    #[command(flatten)]
    udp: udp::Args,
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

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Protocol {
    Tcp,
    Udp,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let none = Vec::new();
    let (tcp, udp, announcement, protocol) = match args.protocol {
        Protocol::Tcp => (
            &args.listen,
            &none,
            args.header.announcement()?,
            proxy::Protocol::Tcp,
        ),
        Protocol::Udp => (
            &none,
            &args.listen,
            args.header.announcement_of_datagrams()?,
            proxy::Protocol::Udp,
        ),
    };
    let _log = args.logging.start();
    let descriptors = Descriptors::share_out(protocol)?;
    let (counters, target) = (Arc::<Counters>::default(), Target(args.to));
    let mut datagrams = args.udp.config(descriptors.sessions);
    if args.header.is_spp() {
        datagrams.dialect = Dialect::Spp;
    }
    let sockets = UdpSockets::open(udp, args.workers.get(), None)?;
    let bound = Bound::open(&Sockets {
        listen: tcp.clone(),
        workers: args.workers.get(),
        connections: descriptors.connections,
    })?;
    let addrs = [bound.addrs(), sockets.addrs()].concat();
    let beside = UdpForwarder {
        target,
        announcement: announcement.clone(),
        datagrams,
        counters: Arc::clone(&counters),
    };
    let bound = bound.with(beside.companions(sockets));
    let forwarder = Forwarder {
        target,
        announcement,
        connect_timeout: args.connect_timeout,
        counters: Arc::clone(&counters),
    };
    runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the control runtime")?
        .block_on(serve(args, &addrs, bound, forwarder))
}

async fn serve(
    args: &Args,
    addrs: &[SocketAddr],
    bound: Bound,
    forwarder: Forwarder,
) -> anyhow::Result<ExitCode> {
    let signals = Signals::catch()?;
    let counters = Arc::clone(&forwarder.counters);
    let running = bound
        .start(&Arc::new(forwarder))
        .context("starting a worker thread")?;
    tracing::info!(listen = ?addrs, to = %args.to, "listening");
    let code = until_told_to_stop(signals, running, args.drain).await;
    tracing::info!(counters = ?counters.snapshot(), "stopped");
    code
}
