//! The running proxy as the control thread sees it: its listeners, and the services and workers that serve them.

use std::net::SocketAddr;
use std::ops::RangeFrom;
use std::sync::Arc;

use anyhow::Context;
use peername_kernel::data_path::DataPath;
use peername_proxy::conn::TcpProxy;
use peername_proxy::policy::destination::OwnPorts;
use peername_proxy::policy::rules::Rules;
use peername_proxy::reply_path::monitor::ReplyPathMonitor;
use peername_proxy::routes::Backend;
use peername_proxy::service::{Service, ServiceHandle, Services};
use peername_proxy::telemetry::counters::Counters;
use peername_proxy::udp::{OpenSessions, UdpConfig, UdpProxy};
use peername_server::listeners::InheritedSockets;
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers::phases::{self, DrainGuard};
use peername_server::workers::{self, WorkerTask, Workers};
use tokio::sync::watch;

use super::listening::{self, BoundAddresses, ListenerIds, OpenedListeners};
use super::setup::{ServicePlan, Setup, TRANSPORTS};
use crate::lifecycle;
use crate::logging::ranges;

/// The running proxy.
pub(super) struct Control {
    pub(super) setup: Setup,
    pub(super) running: Workers,
    pub(super) shared: Shared,
    pub(super) services: ServiceHandle,
    pub(super) listeners: ListenerIds,
    /// Unused ids for further listeners.
    pub(super) ids: RangeFrom<u32>,
    pub(super) actual: BoundAddresses,
    /// Kept open across reloads: an inherited socket can't be opened again.
    pub(super) given: InheritedSockets,
    pub(super) groups: Vec<RunningUdpGroup>,
    /// The current monitor; the task that probes periodically subscribes to it.
    pub(super) reply_path: watch::Sender<Arc<ReplyPathMonitor>>,
}

/// UDP listeners with the same configuration. Dropping this drains them.
pub(super) struct RunningUdpGroup {
    pub(super) addresses: Vec<SocketAddr>,
    /// The configuration as requested; the limit of sessions in use may be lower, by the descriptors.
    pub(super) asked: UdpConfig,
    /// The descriptors that the group may use.
    pub(super) descriptors: usize,
    _drain_guard: DrainGuard,
}

/// State that all services share.
pub(super) struct Shared {
    pub(super) counters: Arc<Counters>,
    pub(super) sessions: OpenSessions,
    own_addresses: OwnAddresses,
    /// The offload of steady UDP sessions, if there is one.
    pub(super) kernel: Option<Arc<DataPath>>,
    /// The backends that rules were set up for at the start.
    pub(super) backends_at_start: Vec<Backend>,
}

impl Control {
    /// Starts the workers and the monitors.
    ///
    /// # Errors
    ///
    /// Netlink, the limit of descriptors, or a thread that can't be started.
    pub(super) async fn start(
        setup: Setup,
        open: OpenedListeners,
        given: InheritedSockets,
        ids: RangeFrom<u32>,
        kernel: Option<Arc<DataPath>>,
    ) -> anyhow::Result<Self> {
        let shared = Shared {
            counters: Arc::default(),
            sessions: OpenSessions::default(),
            own_addresses: OwnAddresses::read().await?,
            kernel,
            backends_at_start: setup.backends(),
        };
        let reply_path = Arc::new(ReplyPathMonitor::new(setup.probes()));
        reply_path.probe_all().await;
        let listeners = open.numbers();
        let actual = open.actual();
        let services = shared.services(&setup, &listeners, &actual, &reply_path)?;
        let services = ServiceHandle::new(services);
        let (running, groups) = shared.run(&setup, open, &services)?;
        for plan in &setup.services {
            log_listening(plan, &actual, setup.process.workers());
        }
        if setup.process.logging.is_go_mmproxy_format() {
            setup.services.iter().for_each(log_allowed_subnets);
        }
        let (reply_path, _) = watch::channel(reply_path);
        tokio::spawn(monitor_reply_paths(reply_path.subscribe()));
        tokio::spawn(lifecycle::watch_own_addresses(shared.own_addresses.clone()));
        Ok(Self {
            setup,
            running,
            shared,
            services,
            listeners,
            ids,
            actual,
            given,
            groups,
            reply_path,
        })
    }
}

impl Shared {
    /// Builds the service of each listener.
    ///
    /// # Errors
    ///
    /// A system call of [`Service::new`] failed.
    pub(super) fn services(
        &self,
        setup: &Setup,
        listeners: &ListenerIds,
        actual: &BoundAddresses,
        reply_path: &Arc<ReplyPathMonitor>,
    ) -> peername_sys::Result<Services> {
        let mut all = Vec::new();
        let own_ports = OwnPorts {
            ports: actual
                .values()
                .map(SocketAddr::port)
                .chain(setup.process.admin.port())
                .collect(),
            transparent: setup.services.iter().any(|plan| plan.config.transparent),
        };
        for plan in &setup.services {
            let rules = Rules {
                config: Arc::clone(&plan.config),
                own_addresses: self.own_addresses.clone(),
                reply_path: Arc::clone(reply_path),
                own_ports: own_ports.clone(),
            };
            let service = Arc::new(Service::new(rules, &self.counters)?);
            let numbers = plan.listeners().filter_map(|key| listeners.get(&key));
            all.extend(numbers.map(|&id| (id, Arc::clone(&service))));
        }
        Ok(all.into_iter().collect())
    }

    fn run(
        &self,
        setup: &Setup,
        open: OpenedListeners,
        services: &ServiceHandle,
    ) -> anyhow::Result<(Workers, Vec<RunningUdpGroup>)> {
        let workers = setup.process.workers();
        let capacity = lifecycle::capacity(workers, open.groups.len(), open.descriptors())?;
        let groups = open.groups.into_iter();
        let (worker_tasks, groups) = groups.map(|group| self.group(group, services)).unzip();
        let proxy = Arc::new(TcpProxy::new(services.clone(), Arc::clone(&self.counters)));
        let running = workers::start(open.tcp, worker_tasks, &proxy, capacity)
            .context("starting a worker thread")?;
        Ok((running, groups))
    }

    /// The tasks that workers run for a group, and the group, which drains them when it is dropped.
    pub(super) fn group(
        &self,
        group: listening::UdpGroup,
        services: &ServiceHandle,
    ) -> (Vec<WorkerTask>, RunningUdpGroup) {
        let addresses: Vec<_> = group.addresses().collect();
        let sockets = addresses.len() * group.sockets.workers();
        let descriptors = group.descriptors() + sockets;
        let counters = Arc::clone(&self.counters);
        let kernel = self.kernel.clone();
        let proxy = UdpProxy::new(
            services.clone(),
            counters,
            group.datagrams,
            kernel,
            self.sessions.clone(),
        );
        let (worker_tasks, drain_guard) =
            phases::with_drain_guard(proxy.worker_tasks(group.sockets));
        let group = RunningUdpGroup {
            addresses,
            asked: group.asked,
            descriptors,
            _drain_guard: drain_guard,
        };
        (worker_tasks, group)
    }
}

/// Logs the addresses that a service listens on, as the kernel assigned them, and its targets.
fn log_listening(plan: &ServicePlan, actual: &BoundAddresses, workers: usize) {
    let [tcp, udp] = TRANSPORTS.map(|transport| {
        let wanted = plan.listen(transport).iter();
        let addrs = wanted.filter_map(|&addr| actual.get(&(transport, addr)).copied());
        ranges(addrs)
    });
    let upstream = &plan.config.upstream;
    tracing::info!(
        tcp,
        udp,
        target_v4 = %upstream.target_v4,
        target_v6 = %upstream.target_v6,
        workers,
        "listening"
    );
}

/// Logs the trusted networks as go-mmproxy does at its start. Without a list it logged none.
fn log_allowed_subnets(plan: &ServicePlan) {
    for network in plan.config.trust.networks() {
        if network.prefix_len() > 0 {
            tracing::info!(subnet = %network, "allowed subnet");
        }
    }
}

async fn monitor_reply_paths(mut reply_path: watch::Receiver<Arc<ReplyPathMonitor>>) {
    loop {
        let now = Arc::clone(&reply_path.borrow_and_update());
        tokio::select! {
            () = now.probe_when_due() => {}
            Ok(()) = reply_path.changed() => {}
        }
    }
}
