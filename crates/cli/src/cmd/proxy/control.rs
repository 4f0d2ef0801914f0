//! The proxy at work, as the control side sees it: what is listened on, and what that is served by.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use peername_proxy::counters::Counters;
use peername_proxy::own_addresses::OwnAddresses;
use peername_proxy::permit::Rules;
use peername_proxy::server::{self, Running};
use peername_proxy::service::{Current, ListenerId, Service, Services};
use peername_proxy::tcp::TcpProxy;
use peername_proxy::udp::UdpProxy;
use peername_proxy::watchdog::ReplyPath;
use peername_sys::netlink::Transport;

use super::open::Open;
use super::setup::{Planned, Setup, TRANSPORTS};
use crate::lifecycle;
use crate::logging::ranges;

/// The running proxy.
pub(super) struct Control {
    pub(super) setup: Setup,
    pub(super) running: Running,
    pub(super) shared: Shared,
}

/// What all services have in common.
pub(super) struct Shared {
    pub(super) counters: Arc<Counters>,
    own_addresses: OwnAddresses,
}

/// Listeners by what was asked for.
type Numbers = HashMap<(Transport, SocketAddr), ListenerId>;

impl Control {
    /// Starts the loops.
    pub(super) async fn start(setup: Setup, open: Open) -> anyhow::Result<Self> {
        let shared = Shared {
            counters: Arc::default(),
            own_addresses: OwnAddresses::read().await?,
        };
        let reply_path = Arc::new(ReplyPath::new(setup.probes()));
        reply_path.check().await;
        let listeners = open.numbers();
        let actual = open.actual();
        let services = shared.services(&setup, &listeners, &reply_path)?;
        let services = Current::new(services);
        let running = shared.run(&setup, open, &services)?;
        for planned in &setup.services {
            tell(planned, &actual, setup.process.workers());
        }
        tokio::spawn(keep_checking(reply_path));
        tokio::spawn(keep_own_addresses(shared.own_addresses.clone()));
        Ok(Self {
            setup,
            running,
            shared,
        })
    }
}

impl Shared {
    /// Each listener's service.
    fn services(
        &self,
        setup: &Setup,
        listeners: &Numbers,
        reply_path: &Arc<ReplyPath>,
    ) -> peername_sys::Result<Services> {
        let mut all = Vec::new();
        for planned in &setup.services {
            let rules = Rules {
                config: Arc::clone(&planned.config),
                own_addresses: self.own_addresses.clone(),
                reply_path: Arc::clone(reply_path),
            };
            let service = Arc::new(Service::new(rules, &self.counters)?);
            let numbers = planned.listeners().filter_map(|key| listeners.get(&key));
            all.extend(numbers.map(|&id| (id, Arc::clone(&service))));
        }
        Ok(all.into_iter().collect())
    }

    fn run(&self, setup: &Setup, open: Open, services: &Current) -> anyhow::Result<Running> {
        let workers = setup.process.workers();
        let sessions = open.groups.iter().map(|group| group.datagrams.sessions);
        let capacity = lifecycle::capacity(workers, open.groups.len(), sessions.sum())?;
        let beside = open.groups.into_iter().map(|group| {
            let proxy = UdpProxy::new(
                services.clone(),
                Arc::clone(&self.counters),
                group.datagrams,
            );
            proxy.companions(group.sockets)
        });
        let proxy = Arc::new(TcpProxy::new(services.clone(), Arc::clone(&self.counters)));
        let running = server::start(open.tcp, beside.collect(), &proxy, capacity);
        running.map_err(|error| anyhow::anyhow!("starting a worker thread: {error}"))
    }
}

/// Says what a service does, by the addresses that the kernel gave it.
fn tell(planned: &Planned, actual: &HashMap<(Transport, SocketAddr), SocketAddr>, workers: usize) {
    let [tcp, udp] = TRANSPORTS.map(|transport| {
        let wanted = planned.listen(transport).iter();
        let addrs = wanted.filter_map(|&addr| actual.get(&(transport, addr)).copied());
        ranges(addrs)
    });
    let upstream = &planned.config.upstream;
    tracing::info!(
        tcp,
        udp,
        target_v4 = %upstream.target_v4,
        target_v6 = %upstream.target_v6,
        workers,
        "listening"
    );
}

async fn keep_checking(reply_path: Arc<ReplyPath>) {
    loop {
        reply_path.rest().await;
        reply_path.check().await;
    }
}

async fn keep_own_addresses(own_addresses: OwnAddresses) {
    loop {
        let Err(error) = own_addresses.watch().await;
        tracing::warn!("can't follow this host's addresses: {error}; trying again");
        tokio::time::sleep(WATCH_AGAIN).await;
    }
}

const WATCH_AGAIN: Duration = Duration::from_secs(5);
