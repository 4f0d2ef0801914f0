//! The control side of a running proxy: its services, and what they share.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use peername_daemon::command::Ready;
use peername_daemon::listeners::running::{RunningListeners, UdpTasks};
use peername_daemon::listeners::{BoundAddresses, ListenerIds, TRANSPORTS, UdpGroup};
use peername_daemon::reload::client_lists::{ClientLists, OpenClients};
use peername_daemon::value::text::ranges;
use peername_kernel::data_path::DataPath;
use peername_proxy::conn::TcpProxy;
use peername_proxy::policy::destination::OwnPorts;
use peername_proxy::policy::rules::Rules;
use peername_proxy::reply_path::monitor::ReplyPathMonitor;
use peername_proxy::routes::{Backend, Keeper, KeeperReports};
use peername_proxy::service::{Service, ServiceHandle, Services};
use peername_proxy::telemetry::counters::Counters;
use peername_proxy::udp::{OpenSessions, UdpProxy};
use peername_server::access::clients::{ClientAccess, HeaderClient};
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers::connections::ConnectionEntry;
use peername_sys::netlink::RoutingMonitor;
use tokio::sync::watch;
use tokio::time::sleep;

use super::options::Args;
use super::setup::{ServicePlan, Setup};

/// What is opened with the privileges of the start.
pub(crate) struct Privileged {
    /// Adds the routing rules, and removes them at the end.
    pub(super) keeper: Option<Keeper>,
    pub(super) kernel: Option<Arc<DataPath>>,
}

/// The running proxy.
pub(crate) struct Control {
    pub(super) setup: Setup,
    pub(super) args: Args,
    pub(super) shared: Shared,
    pub(super) services: ServiceHandle,
    /// The current monitor; the task that probes periodically subscribes to it.
    pub(super) reply_path: watch::Sender<Arc<ReplyPathMonitor>>,
    pub(super) client_lists: ClientLists,
    pub(super) keeper_reports: Option<KeeperReports>,
    /// Removes the routing rules when it is dropped.
    _keeper: Option<Keeper>,
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
    /// With setup-routes, the marks that have a table.
    pub(super) marks_at_start: BTreeSet<NonZeroU32>,
}

impl Control {
    /// Starts the workers and the monitors.
    pub(super) async fn start(
        args: Args,
        ready: Ready<Args>,
    ) -> anyhow::Result<(Self, RunningListeners)> {
        let Ready {
            setup,
            privileged: Privileged { mut keeper, kernel },
            listeners: mut opened,
            history,
        } = ready;
        let shared = Shared {
            counters: Arc::default(),
            sessions: OpenSessions::default(),
            own_addresses: OwnAddresses::read().await?,
            kernel,
            backends_at_start: setup.backends(),
            marks_at_start: setup.marks(),
        };
        let reply_path = Arc::new(ReplyPathMonitor::new(setup.probes()));
        reply_path.probe_all().await;
        let bound = opened.sockets.bound_addresses();
        let ids = opened.sockets.ids();
        let services = ServiceHandle::new(shared.services(&setup, &ids, &bound, &reply_path)?);
        let keeper_reports = keeper.as_mut().map(Keeper::reports).transpose()?;
        let capacity = opened.divide_descriptors(&setup.common.process)?;
        let counters = Arc::clone(&shared.counters);
        let proxy = Arc::new(TcpProxy::new(
            services.clone(),
            counters,
            capacity.connections.clone(),
        ));
        let udp_tasks = shared.udp_tasks(&services);
        let listeners = opened.start(&proxy, capacity, Vec::new(), udp_tasks)?;
        for plan in &setup.services {
            log_listening(plan, &bound, setup.common.process.workers());
        }
        if setup.common.process.logging.is_go_mmproxy_format() {
            setup.services.iter().for_each(log_allowed_subnets);
        }
        let open_clients = OpenClients {
            connections: listeners.workers.connections(),
            sessions: shared.sessions.clone(),
            is_denied: Arc::new(is_denied(shared.own_addresses.clone())),
        };
        let client_policies = setup.client_policies(&bound);
        let client_lists = ClientLists::start(client_policies, open_clients, history);
        let (reply_path, _) = watch::channel(reply_path);
        tokio::spawn(monitor_reply_paths(reply_path.subscribe()));
        tokio::spawn(watch_routing(reply_path.subscribe()));
        tokio::spawn(shared.own_addresses.clone().keep_watching());
        let control = Self {
            args,
            setup,
            shared,
            services,
            reply_path,
            client_lists,
            keeper_reports,
            _keeper: keeper,
        };
        Ok((control, listeners))
    }
}

impl Shared {
    /// Builds the service of each listener.
    pub(super) fn services(
        &self,
        setup: &Setup,
        ids: &ListenerIds,
        bound: &BoundAddresses,
        reply_path: &Arc<ReplyPathMonitor>,
    ) -> peername_sys::Result<Services> {
        let mut services = Vec::new();
        let own_ports = OwnPorts {
            ports: bound
                .values()
                .map(SocketAddr::port)
                .chain(setup.common.process.admin.ports())
                .collect(),
            is_transparent: setup.services.iter().any(|plan| plan.config.transparent),
        };
        for plan in &setup.services {
            let rules = Rules {
                config: Arc::clone(&plan.config),
                own_addresses: self.own_addresses.clone(),
                reply_path: Arc::clone(reply_path),
                own_ports: own_ports.clone(),
            };
            let service = Arc::new(Service::new(rules, &self.counters)?);
            for key in plan.sockets.listeners() {
                if let Some(&id) = ids.get(&key) {
                    services.push((id, Arc::clone(&service)));
                }
            }
        }
        Ok(services.into_iter().collect())
    }

    /// Makes the tasks that workers run for a group of UDP listeners.
    pub(super) fn udp_tasks(
        &self,
        services: &ServiceHandle,
    ) -> impl Fn(UdpGroup) -> UdpTasks + use<> {
        let (counters, kernel) = (Arc::clone(&self.counters), self.kernel.clone());
        let (services, sessions) = (services.clone(), self.sessions.clone());
        move |group| {
            let proxy = UdpProxy::new(
                services.clone(),
                Arc::clone(&counters),
                group.udp_config,
                kernel.clone(),
                sessions.clone(),
            );
            proxy.worker_tasks(group.sockets)
        }
    }
}

/// Whether a policy denies the client of a connection. A connection with neither a client nor a target has not sent its header
/// yet: the header will be judged by the lists that are in force then.
fn is_denied(
    own_addresses: OwnAddresses,
) -> impl Fn(&ConnectionEntry, &ClientAccess) -> bool + Send + Sync {
    move |entry, policy| {
        let client = HeaderClient::of_read_header(entry.client(), entry.peer());
        let is_own = |ip| own_addresses.is_on_this_host(ip);
        let is_header_read = client.claim.is_some() || entry.target().is_some();
        is_header_read && policy.admit(client, is_own).is_err()
    }
}

/// Logs the addresses that a service listens on, as the kernel assigned them, and its targets.
fn log_listening(plan: &ServicePlan, bound: &BoundAddresses, workers: usize) {
    let [tcp, udp] = TRANSPORTS.map(|transport| {
        ranges(
            plan.sockets
                .listen(transport)
                .iter()
                .filter_map(|&addr| bound.get(&(transport, addr)).copied()),
        )
    });
    let targets = &plan.config.upstream.targets;
    tracing::info!(
        tcp,
        udp,
        target_v4 = targets.v4.map(display),
        target_v6 = targets.v6.map(display),
        workers,
        "listening"
    );
}

/// Logs the trusted networks as go-mmproxy does at its start. Without a list go-mmproxy logs none, so `any` is left out.
fn log_allowed_subnets(plan: &ServicePlan) {
    for network in plan.config.trust.iter() {
        if network.prefix_len() > 0 {
            tracing::info!(subnet = %network, "allowed subnet");
        }
    }
}

/// Requests a probe of the reply paths whenever rules or local routes change.
async fn watch_routing(reply_path: watch::Receiver<Arc<ReplyPathMonitor>>) {
    loop {
        let Err(error) = report_routing_changes(&reply_path).await;
        tracing::warn!("can't watch the rules and routes of this host: {error}; trying again");
        sleep(ROUTING_RETRY).await;
    }
}

async fn report_routing_changes(
    reply_path: &watch::Receiver<Arc<ReplyPathMonitor>>,
) -> peername_sys::Result<Infallible> {
    let mut monitor = RoutingMonitor::subscribe()?;
    loop {
        // Also at the start: something may have changed before the subscription.
        reply_path.borrow().report_routing_change();
        monitor.next().await?;
        sleep(ROUTING_SETTLE).await;
        while monitor.try_next().is_some() {}
    }
}

/// Time in which the keeper restores what another program has removed.
const ROUTING_SETTLE: Duration = Duration::from_millis(200);
const ROUTING_RETRY: Duration = Duration::from_secs(60);

/// Probes the reply paths of the current monitor whenever a probe is due.
async fn monitor_reply_paths(mut reply_path: watch::Receiver<Arc<ReplyPathMonitor>>) {
    loop {
        let monitor = Arc::clone(&reply_path.borrow_and_update());
        tokio::select! {
            () = monitor.probe_when_due() => {}
            Ok(()) = reply_path.changed() => {}
        }
    }
}
