//! The listeners of a running command, and how a reload changes them: everything that can fail is done before anything is
//! changed.
//!
//! Listeners that stay keep their sockets, so that no connection in their accept backlogs is lost; removed listeners drain
//! their backlogs before they close. A UDP listener ends at once if another listener overlaps its address, or gets its clients
//! from now on: while draining, it would receive datagrams of the other listener's clients, and refuse them.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::ops::RangeFrom;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use peername_proxy::udp::{UdpConfig, UdpWorkers};
use peername_server::listeners::{BindError, InheritedSockets};
use peername_server::workers::phases::{self, DrainGuard};
use peername_server::workers::{self, LimitHandle, Serve, WorkerTask, WorkerThreads, Workers};
use peername_sys::Transport;

use super::{
    BoundAddresses, ListenPlan, ListenerIds, ListenerKey, OpenedListeners, UdpGroup,
    check_inherited_sockets, gets_clients,
};
use crate::descriptors;
use crate::handover::Predecessor;
use crate::process::Process;
use crate::value::text::ranges;

/// The listeners of a command, and the workers that serve them.
pub struct RunningListeners {
    /// The workers.
    pub workers: Workers,
    pub(super) plans: Vec<ListenPlan>,
    worker_count: usize,
    pub(super) ids: ListenerIds,
    /// Unused ids for further listeners.
    unused_ids: RangeFrom<u32>,
    bound: BoundAddresses,
    /// The listeners that leave IPv4 to others (IPV6_V6ONLY).
    ipv6_only: HashSet<ListenerKey>,
    /// Kept open across reloads: an inherited socket can't be opened again.
    pub(super) inherited: InheritedSockets,
    pub(super) groups: Vec<RunningUdpGroup>,
}

/// UDP listeners with the same configuration. Dropping this drains them.
pub(super) struct RunningUdpGroup {
    pub(super) addresses: Vec<SocketAddr>,
    /// The configuration as requested; the limit of sessions in use may be lower, by the descriptors.
    pub(super) requested: UdpConfig,
    /// The descriptors that the group may use.
    descriptors: usize,
    pub(super) workers: UdpWorkers,
    drain_guard: DrainGuard,
}

/// The listeners of a start, which are open and not served yet.
pub struct Opened {
    plans: Vec<ListenPlan>,
    worker_count: usize,
    /// The open sockets.
    pub sockets: OpenedListeners,
    unused_ids: RangeFrom<u32>,
    inherited: InheritedSockets,
    /// The process to take over from at the start.
    pub previous: Option<Predecessor>,
}

/// The tasks of a UDP group, with handles of them.
pub type UdpTasks = (Vec<WorkerTask>, UdpWorkers);

/// A change of the listeners, of which only [`Change::listen`] can still fail.
pub struct Change {
    plans: Vec<ListenPlan>,
    opened: OpenedListeners,
    /// The id of each listener after the change.
    pub ids: ListenerIds,
    /// The address that each listener is bound to.
    pub bound: BoundAddresses,
    /// The listeners after the change.
    wanted: HashSet<ListenerKey>,
    /// The listeners before and after the change that leave IPv4 to others (IPV6_V6ONLY).
    ipv6_only: HashSet<ListenerKey>,
    /// The time after which the sessions of removed listeners are closed (`--drain`).
    drain_limit: Duration,
}

impl Change {
    /// Makes the new TCP listeners listen. To be called when nothing else of the reload can fail.
    pub fn listen(&self) -> Result<(), BindError> {
        self.opened.tcp.listen()
    }
}

impl Opened {
    /// Opens all listeners of a start.
    pub fn open(
        plans: Vec<ListenPlan>,
        process: &Process,
        inherited: InheritedSockets,
        mut previous: Option<Predecessor>,
    ) -> anyhow::Result<Self> {
        let mut inherited = match &mut previous {
            Some(previous) => previous.take_sockets(&plans)?,
            None => inherited,
        };
        let refs: Vec<_> = plans.iter().collect();
        let sockets: usize = refs.iter().map(|plan| plan.listeners().count()).sum();
        let worker_count = process.workers();
        descriptors::require_descriptors(
            process,
            sockets * worker_count,
            inherited.previous_count(),
        )?;
        check_inherited_sockets(&inherited, &refs)?;
        let mut unused_ids = 0..;
        let sockets = OpenedListeners::open_missing(
            &refs,
            worker_count,
            &ListenerIds::new(),
            &mut inherited,
            &mut unused_ids,
        )?;
        if previous.is_none() {
            // At once: another start recognizes an address in use only by a socket that listens.
            sockets.tcp.listen()?;
        }
        // Sockets of the previous process that no plan needs stay with that process.
        inherited.previous_tcp.clear();
        inherited.previous_udp.clear();
        Ok(Self {
            plans,
            worker_count,
            sockets,
            unused_ids,
            inherited,
            previous,
        })
    }

    /// Divides the descriptors that are free between connections, pipes and UDP. To be called when all is open that the process
    /// keeps open, and before [`Opened::start`].
    pub fn divide_descriptors(&mut self, process: &Process) -> anyhow::Result<workers::Capacity> {
        let has_tcp = self.plans.iter().any(|plan| !plan.tcp.is_empty());
        let udp_descriptors = descriptors::udp_fd_budget(process, has_tcp)?;
        self.sockets.limit_sessions(udp_descriptors);
        descriptors::capacity(process, 0, self.sockets.descriptors())
    }

    /// Starts the threads of the workers, takes over from the previous process, if there is one, and starts the workers. To be
    /// called when nothing else can fail. `udp_tasks` makes the tasks of a UDP group; the workers run `further_tasks`, too.
    ///
    /// # Errors
    ///
    /// The previous process goes on; or a thread can't be started.
    pub fn start<S: Serve>(
        mut self,
        service: &Arc<S>,
        capacity: workers::Capacity,
        further_tasks: Vec<WorkerTask>,
        udp_tasks: impl Fn(UdpGroup) -> UdpTasks,
    ) -> anyhow::Result<RunningListeners> {
        let threads =
            WorkerThreads::spawn(self.worker_count).context("starting a worker thread")?;
        if let Some(mut previous) = self.previous.take() {
            let tcp = self.plans.iter().flat_map(|plan| &plan.tcp).copied();
            let udp = self.sockets.groups.iter_mut().map(|group| {
                let addresses = group.addresses().collect();
                (addresses, &mut group.sockets)
            });
            previous.receive_sessions(tcp, udp.collect())?;
            self.sockets.tcp.listen()?;
            previous.take_over()?;
        }
        let (ids, bound) = (self.sockets.ids(), self.sockets.bound_addresses());
        let ipv6_only = self.sockets.ipv6_only();
        let (mut worker_tasks, groups): (Vec<_>, Vec<_>) = self
            .sockets
            .groups
            .into_iter()
            .map(|group| RunningUdpGroup::begin(group, &udp_tasks))
            .unzip();
        if !further_tasks.is_empty() {
            worker_tasks.push(further_tasks);
        }
        let workers = workers::start(threads, self.sockets.tcp, worker_tasks, service, capacity);
        Ok(RunningListeners {
            workers,
            plans: self.plans,
            worker_count: self.worker_count,
            ids,
            unused_ids: self.unused_ids,
            bound,
            ipv6_only,
            inherited: self.inherited,
            groups,
        })
    }
}

/// Adds to an address in use that the socket may be this process's own.
fn explain_in_use(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<BindError>() {
        Some(failed) if failed.is_in_use() => anyhow!(
            "{failed}, or a listener of this process that a reload closed still drains its sessions (UDP) or its backlog (TCP)"
        ),
        _ => error,
    }
}

impl RunningListeners {
    /// Opens the listeners of these plans that are not open yet. `process` are the options after the change.
    pub fn prepare(&mut self, plans: Vec<ListenPlan>, process: &Process) -> anyhow::Result<Change> {
        let refs: Vec<_> = plans.iter().collect();
        check_inherited_sockets(&self.inherited, &refs)?;
        self.check_transparent(&plans)?;
        self.check_groups(&plans)?;
        let wanted: HashSet<_> = plans.iter().flat_map(ListenPlan::listeners).collect();
        self.check_ipv6_only(&wanted)?;
        let mut opened = OpenedListeners::open_missing(
            &refs,
            self.worker_count,
            &self.ids,
            &mut self.inherited,
            &mut self.unused_ids,
        )
        .map_err(explain_in_use)?;
        let mut ipv6_only = opened.ipv6_only();
        ipv6_only.extend(&self.ipv6_only);
        let sockets = opened.ids().len() * self.worker_count;
        let replaced = self
            .groups
            .iter()
            .filter(|group| group.is_removed(&wanted))
            .filter(|group| group.is_replaced(&opened, &wanted, &ipv6_only))
            .map(|group| group.descriptors);
        let free = self.workers.free_descriptors() + replaced.sum::<usize>();
        let has_tcp = plans.iter().any(|plan| !plan.tcp.is_empty());
        opened.limit_sessions(descriptors::udp_share(
            free.saturating_sub(sockets),
            has_tcp,
        ));
        ensure!(
            sockets + opened.descriptors() <= free,
            "too few descriptors are free for {sockets} more listening sockets: raise LimitNOFILE or \
             `ulimit -Hn`, and restart"
        );
        let (mut ids, mut bound) = (self.ids.clone(), self.bound.clone());
        ids.retain(|key, _| wanted.contains(key));
        ids.extend(opened.ids());
        bound.retain(|key, _| wanted.contains(key));
        bound.extend(opened.bound_addresses());
        Ok(Change {
            plans,
            opened,
            ids,
            bound,
            wanted,
            ipv6_only,
            drain_limit: process.drain_limits().stop,
        })
    }

    /// Closes the listeners that the change removes, after [`Change::listen`], calls `replace_services`, and serves the new
    /// listeners. Returns the addresses opened and closed.
    pub async fn apply(
        &mut self,
        change: Change,
        replace_services: impl FnOnce(),
        udp_tasks: impl Fn(UdpGroup) -> UdpTasks,
    ) -> (String, String) {
        let opened = ranges(change.opened.bound_addresses().into_values());
        let closed = ranges(self.close_all_but(&change).await);
        replace_services();
        change.opened.warn_of_few_sessions();
        for group in change.opened.groups {
            let (worker_tasks, group) = RunningUdpGroup::begin(group, &udp_tasks);
            self.workers.limit().reserve_descriptors(group.descriptors);
            self.workers.spawn(worker_tasks);
            self.groups.push(group);
        }
        self.workers.open(change.opened.tcp);
        self.ids = change.ids;
        self.bound = change.bound;
        self.ipv6_only = change.ipv6_only;
        self.ipv6_only.retain(|key| change.wanted.contains(key));
        self.plans = change.plans;
        (opened, closed)
    }

    fn check_transparent(&self, plans: &[ListenPlan]) -> anyhow::Result<()> {
        let is_changed = |key: &&ListenerKey| {
            let new = is_transparent(plans, **key);
            new.is_some() && new != is_transparent(&self.plans, **key)
        };
        match self.ids.keys().find(is_changed) {
            Some((_, addr)) => {
                bail!("listen-transparent of {addr} can't change without a restart")
            }
            None => Ok(()),
        }
    }

    /// Checks that an IPv4 listener stays beside each `[::]` that stays and was opened with IPV6_V6ONLY, which can't be cleared
    /// after bind(2).
    fn check_ipv6_only(&self, wanted: &HashSet<ListenerKey>) -> anyhow::Result<()> {
        let mut losing = self
            .ipv6_only
            .iter()
            .filter(|key| key.1.ip().is_unspecified() && wanted.contains(key))
            .filter(|key| has_ipv4_beside(self.ids.keys(), **key))
            .filter(|key| !has_ipv4_beside(wanted, **key));
        match losing.next() {
            Some((_, addr)) => bail!(
                "{addr} was opened for IPv6 only, beside addresses of IPv4; without one, clients of IPv4 would be refused: restart, or \
                 list 0.0.0.0:{} as well",
                addr.port()
            ),
            None => Ok(()),
        }
    }

    /// Checks that each UDP group is kept unchanged or closed as a whole: the sessions of a group share their limits.
    fn check_groups(&self, plans: &[ListenPlan]) -> anyhow::Result<()> {
        for group in &self.groups {
            ensure!(
                plans
                    .iter()
                    .all(|plan| group.is_disjoint_from(plan) || group.is_unchanged_in(plan)),
                "UDP at {}: its addresses and udp-header can't change without a restart, close-after and max-sessions not without a \
                 restart or an upgrade; the group can only be removed as a whole, and further addresses need a table of their own",
                ranges(group.addresses.iter().copied())
            );
        }
        Ok(())
    }

    /// Closes and drains the listeners that the configuration no longer has, and returns their addresses.
    async fn close_all_but(&mut self, change: &Change) -> Vec<SocketAddr> {
        let is_removed = |key: &ListenerKey| !change.wanted.contains(key);
        let mut closed = Vec::new();
        let mut tcp_ids = Vec::new();
        for (key, id) in self.ids.iter().filter(|(key, _)| is_removed(key)) {
            let (transport, addr) = *key;
            closed.push(addr);
            if transport == Transport::Tcp {
                tcp_ids.push(*id);
            }
        }
        self.workers.close(tcp_ids).await;
        let removed_groups: Vec<_> = self
            .groups
            .extract_if(.., |group| group.is_removed(&change.wanted))
            .collect();
        for group in removed_groups {
            let limit = self.workers.limit();
            if group.is_replaced(&change.opened, &change.wanted, &change.ipv6_only) {
                group.drain_guard.end().await;
                limit.release_descriptors(group.descriptors);
            } else {
                tokio::spawn(group.drain(change.drain_limit, limit));
            }
        }
        closed
    }
}

/// Whether one of the listeners is an IPv4 one on the port of this listener.
fn has_ipv4_beside<'a>(
    listeners: impl IntoIterator<Item = &'a ListenerKey>,
    (transport, addr): ListenerKey,
) -> bool {
    listeners.into_iter().any(|&(other_transport, other)| {
        other_transport == transport && other.is_ipv4() && other.port() == addr.port()
    })
}

impl RunningUdpGroup {
    fn is_disjoint_from(&self, plan: &ListenPlan) -> bool {
        !plan.udp.iter().any(|addr| self.addresses.contains(addr))
    }

    fn is_unchanged_in(&self, plan: &ListenPlan) -> bool {
        let own: HashSet<_> = self.addresses.iter().collect();
        own == plan.udp.iter().collect() && plan.udp_config == self.requested
    }

    fn is_removed(&self, wanted: &HashSet<ListenerKey>) -> bool {
        (self.addresses.iter()).any(|&addr| !wanted.contains(&(Transport::Udp, addr)))
    }

    /// Whether a wanted listener gets clients of this group, or the group, while it drains, would get those of an opened one. It
    /// then ends at once.
    fn is_replaced(
        &self,
        opened: &OpenedListeners,
        wanted: &HashSet<ListenerKey>,
        ipv6_only: &HashSet<ListenerKey>,
    ) -> bool {
        let gets =
            |wide, narrow| gets_clients(wide, ipv6_only.contains(&(Transport::Udp, wide)), narrow);
        self.addresses.iter().any(|&own| {
            let mut new = opened.groups.iter().flat_map(UdpGroup::addresses);
            new.any(|new| gets(own, new))
                || (wanted.iter())
                    .any(|&(transport, wide)| transport == Transport::Udp && gets(wide, own))
        })
    }

    /// Drains the group for `time_limit` at most, and releases its descriptors once its sessions have ended: until then they
    /// hold them.
    async fn drain(self, time_limit: Duration, limit: LimitHandle) {
        self.drain_guard.drain(time_limit).await;
        limit.release_descriptors(self.descriptors);
    }

    /// Makes the tasks that workers run for a group, and the running group, which drains them when it is dropped.
    fn begin(
        group: UdpGroup,
        udp_tasks: &impl Fn(UdpGroup) -> UdpTasks,
    ) -> (Vec<WorkerTask>, Self) {
        let addresses: Vec<_> = group.addresses().collect();
        let requested = group.requested;
        let sockets = addresses.len() * group.sockets.workers();
        let descriptors = group.descriptors() + sockets;
        let (worker_tasks, workers) = udp_tasks(group);
        let (worker_tasks, drain_guard) = phases::with_drain_guard(worker_tasks);
        let group = Self {
            addresses,
            requested,
            descriptors,
            workers,
            drain_guard,
        };
        (worker_tasks, group)
    }
}

/// Whether a listener accepts traffic that TPROXY rules redirect; `None` if no plan has it.
pub(super) fn is_transparent(plans: &[ListenPlan], (transport, addr): ListenerKey) -> Option<bool> {
    let mut plans = plans.iter();
    let plan = plans.find(|plan| plan.listen(transport).contains(&addr));
    plan.map(|plan| plan.transparent)
}
