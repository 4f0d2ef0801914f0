//! `peername demo`: runs a backend, a balancer and the proxy in one process and one private network namespace, and
//! prints the client that the backend sees. The host's network is not changed.

mod peers;

use std::io::{Write, stdout};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use peername_proto::{SourcePolicy, Transport};
use peername_proxy::backend::Backend;
use peername_proxy::config::{Config, OnCollision, SendProxy, SourcePort, Targets, UpstreamConfig};
use peername_proxy::conn::TcpProxy;
use peername_proxy::policy::destination::OwnPorts;
use peername_proxy::policy::rules::Rules;
use peername_proxy::reply_path::monitor::ReplyPathMonitor;
use peername_proxy::service::{Service, ServiceHandle, Services};
use peername_proxy::telemetry::counters::Counters;
use peername_proxy::udp::{OpenSessions, UdpConfig, UdpListeners, UdpProxy};
use peername_proxy::{forward, routes};
use peername_relay::{Limits, Method};
use peername_server::access::network_set::NetworkSet;
use peername_server::header_limits::HeaderLimits;
use peername_server::listeners::number_listeners;
use peername_server::listeners::{ExistingListeners, InheritedSockets, Listeners};
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers::{self, Capacity, Workers};
use peername_sys::netlink::Netlink;
use peername_sys::process::caps::{CapabilitySet, is_effective};
use peername_sys::process::namespace::{NetworkNamespace, become_root_of_new_user_namespace};

use peers::{ask, ask_in_datagrams, serve, serve_datagrams};

/// Options of `peername demo`: none.
#[derive(Debug, clap::Args)]
#[command(before_help = "Example:\n  peername demo")]
pub(crate) struct Args {}

/// # Errors
///
/// Namespaces can't be created, a socket fails, or the backend saw another address than the client's.
pub(crate) fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    if !is_effective(CapabilitySet::SYS_ADMIN) {
        become_root_of_new_user_namespace().context(
            "this host does not let ordinary users create namespaces; run `peername demo` as root",
        )?;
    }
    let _network = NetworkNamespace::unshare()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let cases = runtime.block_on(prepare())?;
    let _proxy = runtime.block_on(start(&cases))?;
    let out = &mut stdout();
    writeln!(
        out,
        "In a network of its own: a backend, and a balancer that knows the client.\n"
    )?;
    cases.iter().try_for_each(|case| case.show(out))?;
    writeln!(
        out,
        "Next: `peername proxy --help`, and `peername doctor` on the host that is to run it."
    )?;
    Ok(ExitCode::SUCCESS)
}

/// The demonstration for one address family.
struct Case {
    client: SocketAddr,
    /// The address the client connected to, at the balancer.
    service: SocketAddr,
    proxy: SocketAddr,
    backend: SocketAddr,
}

/// Sets the network up and starts the backends; IPv6 only where this host has it.
async fn prepare() -> anyhow::Result<Vec<Case>> {
    Netlink::open()?.set_loopback_up().await?;
    let mut backends = Vec::new();
    for address in [V4.backend, V6.backend] {
        for transport in [peername_sys::Transport::Tcp, peername_sys::Transport::Udp] {
            backends.push(Backend::new(address.parse()?, transport));
        }
    }
    routes::add(&backends).await?;
    let mut cases = vec![Case::new(&V4)?];
    cases.extend(Case::new(&V6).ok());
    Ok(cases)
}

async fn start(cases: &[Case]) -> anyhow::Result<Workers> {
    let upstream = UpstreamConfig {
        targets: Targets {
            v4: Some(V4.backend.parse::<SocketAddr>()?.into()),
            v6: Some(V6.backend.parse::<SocketAddr>()?.into()),
        },
        mark: None,
        source_port: SourcePort::Keep,
        on_collision: OnCollision::Fail,
        connect_timeout: HeaderLimits::default().timeout,
        send_proxy: None,
    };
    let config = Config {
        transparent: false,
        clients: Arc::default(),
        trust: NetworkSet::read_required("--trust", &["loopback"])?,
        header: HeaderLimits::default(),
        source_policy: SourcePolicy::Strict,
        destination_policy: None,
        upstream,
        relay: Method::Auto,
        limits: Limits::default(),
        log_tlvs: Vec::new(),
    };
    let listen: Vec<_> = cases.iter().map(|case| case.proxy).collect();
    let (tcp, udp): (Vec<_>, Vec<_>) = (
        number_listeners(0, &listen).collect(),
        number_listeners(2, &listen).collect(),
    );
    let listeners = Listeners::open(
        &tcp,
        &ExistingListeners::default(),
        1,
        &mut InheritedSockets::default(),
    )?;
    let reply_path = Arc::new(ReplyPathMonitor::new([V4.backend.parse::<SocketAddr>()?]));
    let counters = Arc::<Counters>::default();
    let rules = Rules {
        config: Arc::new(config),
        own_addresses: OwnAddresses::read().await?,
        reply_path,
        // No header names a destination here.
        own_ports: OwnPorts::default(),
    };
    let ids = tcp.iter().chain(&udp).map(|&(id, _)| id);
    let services = ServiceHandle::new(Services::with_one(ids, Service::new(rules, &counters)?));
    let datagrams = UdpConfig::default();
    let sockets = UdpListeners::open(
        &udp,
        &ExistingListeners::default(),
        1,
        Some(datagrams.dialect),
        &mut InheritedSockets::default(),
    )?;
    let udp_proxy = UdpProxy::new(
        services.clone(),
        Arc::clone(&counters),
        datagrams,
        None,
        OpenSessions::default(),
    );
    let worker_tasks = vec![udp_proxy.worker_tasks(sockets).0];
    let proxy = Arc::new(TcpProxy::new(services, counters, CAPACITY.connections));
    Ok(workers::start(listeners, worker_tasks, &proxy, CAPACITY)?)
}

impl Case {
    fn new(text: &Addresses) -> anyhow::Result<Self> {
        let backend = serve(text.backend.parse()?)?;
        serve_datagrams(backend)?;
        let (client, service) = (text.client.parse()?, text.service.parse()?);
        Ok(Self {
            client,
            service,
            proxy: text.proxy.parse()?,
            backend,
        })
    }

    fn show(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let Self {
            client,
            service,
            proxy,
            backend,
        } = self;
        let header =
            forward::HeaderTemplate::v1(*client).header(Transport::Stream, *client, *service)?;
        let line = String::from_utf8_lossy(&header);
        let without = ask(*backend, b"")?;
        let with = ask(*proxy, &header)?;
        let in_datagrams = forward::HeaderTemplate {
            version: Some(SendProxy::V2),
            ..forward::HeaderTemplate::v1(*client)
        };
        let header = in_datagrams.header(Transport::Datagram, *client, *service)?;
        let over_udp = ask_in_datagrams(*proxy, &header)?;
        writeln!(
            out,
            "The client is {client}. The balancer sends peername at {proxy} the header"
        )?;
        writeln!(out, "    {}", line.trim_end())?;
        writeln!(out, "and the backend at {backend} saw")?;
        writeln!(out, "    without peername   {without}")?;
        writeln!(out, "    with peername      {with}")?;
        writeln!(out, "    and over UDP       {over_udp}\n")?;
        for seen in [with, over_udp] {
            ensure!(seen == *client, "the backend should have seen {client}");
        }
        Ok(())
    }
}

/// More connections than the demo opens.
const CAPACITY: Capacity = Capacity {
    connections: 64,
    pipes_per_worker: 1,
};

struct Addresses {
    client: &'static str,
    service: &'static str,
    proxy: &'static str,
    backend: &'static str,
}

/// Clients and services have documentation addresses (RFC 5737, RFC 3849).
const V4: Addresses = Addresses {
    client: "203.0.113.7:56324",
    service: "198.51.100.10:443",
    proxy: "127.0.0.1:8443",
    backend: "127.0.0.1:9000",
};
const V6: Addresses = Addresses {
    client: "[2001:db8::7]:56324",
    service: "[2001:db8:1::10]:443",
    proxy: "[::1]:8443",
    backend: "[::1]:9000",
};
