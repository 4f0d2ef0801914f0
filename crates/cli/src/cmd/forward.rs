//! `peername forward`: the sender of PROXY headers, for sites with a balancer that can't write them.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use peername_proto::HostAddress;
use peername_proxy::forward::{Forwarder, HeaderTemplate};
use peername_proxy::telemetry::counters::Counters;
use peername_proxy::udp::{Dialect, OpenSessions, UdpConfig, UdpForwarder, UdpListeners};
use peername_relay::check_uring;
use peername_server::addr::Target;
use peername_server::confinement::Needs;
use peername_server::listeners::number_listeners;
use peername_server::listeners::{ExistingListeners, InheritedSockets, Listeners};
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers;
use peername_sys::process::caps::{CapabilitySet, keep_only};

use crate::admin::{AdminArgs, ServedProxy, serve_proxy};
use crate::cmd::proxy::udp;
use crate::cmd::self_connect::connects_to_listener;
use crate::cmd::send::Header;
use crate::lifecycle::{self, Signals};
use crate::usage::Usage;
use crate::{confinement, logging, value};

/// Options of `peername forward`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The address to listen on; may be repeated
    #[arg(short, long, value_name = "ADDR", required = true, value_parser = value::address)]
    listen: Vec<SocketAddr>,
    /// The server that connections are forwarded to, with a header
    #[arg(long, value_name = "ADDR", value_parser = value::address)]
    to: SocketAddr,
    /// The transports to forward
    #[arg(short, long, default_value = "tcp")]
    protocol: Protocol,
    #[command(flatten)]
    header: Header,
    #[command(flatten)]
    udp: udp::Args,
    /// Timeout for connecting to the server
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = value::duration)]
    connect_timeout: Duration,
    /// Event loops
    #[arg(long, value_name = "N", default_value = "1")]
    workers: NonZeroUsize,
    /// How long connections may stay open after SIGTERM; a second SIGTERM ends them
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = value::duration)]
    drain: Duration,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    sandbox: confinement::Args,
    #[command(flatten)]
    logging: logging::Args,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Protocol {
    Tcp,
    Udp,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.check_udp()?;
    let header_template = match args.protocol {
        Protocol::Tcp => args.header.header_template()?,
        Protocol::Udp => args.header.datagram_header_template()?,
    };
    lifecycle::block_on(start(args, header_template))
}

async fn start(args: &Args, header_template: HeaderTemplate) -> anyhow::Result<ExitCode> {
    let signals = Signals::listen()?;
    args.check_at(&OwnAddresses::read().await?)?;
    let (workers, target) = (args.workers.get(), Target(args.to));
    let (tcp, udp) = match args.protocol {
        Protocol::Tcp => (&args.listen[..], &[][..]),
        Protocol::Udp => (&[][..], &args.listen[..]),
    };
    let given = InheritedSockets::default();
    let tcp: Vec<_> = number_listeners(0, tcp).collect();
    let listeners = Listeners::open(&tcp, &ExistingListeners::default(), workers, &given)?;
    // The sender of a datagram is the client, and the kernel keeps it with one worker.
    let sockets = UdpListeners::open(
        &number_listeners(0, udp).collect::<Vec<_>>(),
        &ExistingListeners::default(),
        workers,
        None,
        &given,
    )?;
    let admin = args.admin.open()?;
    // It connects from its own address: no privilege is needed any more.
    keep_only(CapabilitySet::empty())?;
    let needs = Needs {
        removes: args.admin.socket_file(),
        io_uring: !tcp.is_empty() && check_uring().is_ok(),
        ..Needs::default()
    };
    let confinement = args.sandbox.confine(needs)?;
    let (_log, log_level) = args.logging.start();
    confinement.log();
    let (tcp, udp) = (
        logging::join(listeners.addrs()),
        logging::join(sockets.addrs()),
    );
    let counters = Arc::<Counters>::default();
    let sessions = OpenSessions::default();
    let beside = UdpForwarder {
        target,
        header_template: header_template.clone(),
        config: args.datagrams(lifecycle::session_fd_budget(workers, false)?),
        counters: Arc::clone(&counters),
        sessions: sessions.clone(),
    };
    let forwarder = Forwarder {
        target,
        header_template,
        connect_timeout: args.connect_timeout,
        counters: Arc::clone(&counters),
    };
    let beside = vec![beside.worker_tasks(sockets)];
    let capacity = lifecycle::capacity(workers, beside.len(), 0)?;
    let running = workers::start(listeners, beside, &Arc::new(forwarder), capacity)
        .context("starting a worker thread")?;
    tracing::info!(
        tcp,
        udp,
        upstream = %args.to,
        workers,
        "listening"
    );
    if let Some(admin) = admin {
        let running = ServedProxy {
            counters: Arc::clone(&counters),
            workers: &running,
            sessions,
            reply_path: None,
            log_level,
        };
        serve_proxy(admin, &args.admin, running);
    }
    let code = signals.serve(running, args.drain).await;
    logging::totals(&counters.snapshot());
    code
}

impl Args {
    fn check_at(&self, host: &OwnAddresses) -> Result<(), Usage> {
        let listen = self.listen.iter().copied().collect();
        let is_own = |ip| host.kind_of(ip) == Some(HostAddress::Own);
        match connects_to_listener(&listen, self.to, is_own) {
            true => Err(Usage(format!(
                "--to {}: it would connect to itself",
                self.to
            ))),
            false => Ok(()),
        }
    }

    /// The configuration by the options for UDP.
    fn check_udp(&self) -> Result<(), Usage> {
        let text = match (self.protocol, self.udp.udp_header) {
            (Protocol::Tcp, Some(_)) => {
                "--udp-header is for UDP, which is not forwarded: add --protocol udp"
            }
            (_, Some(_)) if self.header.is_absent() => {
                "--udp-header selects the datagrams with a header, and --proxy-version none sends none"
            }
            (_, Some(udp::UdpHeader(Dialect::First))) if self.header.is_spp() => {
                "--proxy-version spp is a header on each datagram: it can't be combined with --udp-header first"
            }
            (_, Some(udp::UdpHeader(Dialect::Spp))) if self.header.has_fields() => {
                "--tlv and --crc32c: the Simple Proxy Protocol has no fields"
            }
            _ => return Ok(()),
        };
        Err(Usage(text.to_owned()))
    }

    fn datagrams(&self, descriptors: usize) -> UdpConfig {
        let datagrams = self.udp.config(descriptors);
        match self.header.is_spp() {
            true => UdpConfig {
                dialect: Dialect::Spp,
                ..datagrams
            },
            false => datagrams,
        }
    }
}
