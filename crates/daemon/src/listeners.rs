//! The listening sockets of a command: opened before any of them is served, and opened and closed by reloads.

mod handover;
pub mod running;
pub mod self_connect;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::ops::RangeFrom;

use anyhow::bail;
use peername_proxy::udp::{Dialect, MAX_REPLY_SOCKETS, UdpConfig, UdpListeners};
use peername_server::listeners::{
    ExistingListeners, InheritedSockets, ListenAddr, ListenerId, Listeners, covers,
};
use peername_sys::Transport;

use crate::usage::{ErrorCollector, UsageError};
use crate::value::Listen;
use crate::value::text::{join, ranges};

/// The listeners of one table or command line.
#[derive(Clone, Debug, Default)]
pub struct ListenPlan {
    /// TCP addresses.
    pub tcp: Vec<SocketAddr>,
    /// UDP addresses.
    pub udp: Vec<SocketAddr>,
    /// Whether they accept traffic that TPROXY rules redirect.
    pub transparent: bool,
    /// How datagrams are served.
    pub udp_config: UdpConfig,
    /// The dialect of the headers by which datagrams are steered to workers; `None` if the sender of a datagram is the client.
    pub steered_by: Option<Dialect>,
}

impl ListenPlan {
    /// The addresses of one protocol.
    pub fn listen(&self, transport: Transport) -> &[SocketAddr] {
        match transport {
            Transport::Tcp => &self.tcp,
            Transport::Udp => &self.udp,
        }
    }

    /// All listeners, each by its protocol and address.
    pub fn listeners(&self) -> impl Iterator<Item = ListenerKey> + '_ {
        TRANSPORTS.into_iter().flat_map(|transport| {
            let addrs = self.listen(transport).iter();
            addrs.map(move |&addr| (transport, addr))
        })
    }
}

/// Resolves the addresses that an option lists.
pub fn resolve_listeners(option: &str, all: &[Listen]) -> Result<Vec<SocketAddr>, UsageError> {
    let mut errors = ErrorCollector::default();
    let mut found = Vec::new();
    for written in all {
        let resolved = written
            .addresses()
            .map_err(|why| UsageError(format!("{option} {written}: {why}")));
        found.extend(errors.note(resolved).into_iter().flatten());
    }
    errors.into_result(Some(found))
}

/// A short summary for the service manager and `config check`.
pub fn summary<'a>(plans: impl IntoIterator<Item = &'a ListenPlan> + Clone) -> String {
    let mut protocols = Vec::new();
    for (name, transport) in [("tcp", Transport::Tcp), ("udp", Transport::Udp)] {
        let plans = plans.clone().into_iter();
        let addrs = ranges(plans.flat_map(|plan| plan.listen(transport)).copied());
        if !addrs.is_empty() {
            protocols.push(format!("{name} {addrs}"));
        }
    }
    join(protocols)
}

/// Refuses an inherited socket that no listener uses: its clients would never be accepted.
pub fn check_inherited_sockets(
    inherited: &InheritedSockets,
    plans: &[&ListenPlan],
) -> anyhow::Result<()> {
    let [tcp, udp] = TRANSPORTS.map(|transport| {
        plans
            .iter()
            .flat_map(|plan| plan.listen(transport))
            .copied()
            .collect::<Vec<_>>()
    });
    if let Some(unwanted) = inherited.find_unwanted(&tcp, &udp) {
        let protocol = if unwanted.is_stream { "TCP" } else { "UDP" };
        bail!(
            "the service manager passed socket {} for {protocol} {}, which is not listened on: name it \
             (--listen, or address in the file), or take it out of the .socket unit",
            unwanted.label,
            unwanted.addr
        );
    }
    Ok(())
}

/// A listener by its protocol and requested address.
pub type ListenerKey = (Transport, SocketAddr);

/// Open listening sockets that no worker serves yet.
pub struct OpenedListeners {
    /// The TCP listeners.
    pub tcp: Listeners,
    /// The UDP listeners.
    pub groups: Vec<UdpGroup>,
    /// The requested TCP addresses, with their ids.
    wanted_tcp: Vec<ListenAddr>,
}

/// The UDP listeners of one service: their sessions share limits and a dialect.
pub struct UdpGroup {
    wanted: Vec<ListenAddr>,
    /// The open sockets.
    pub sockets: UdpListeners,
    /// The configuration in use: at most as many sessions as there are descriptors for.
    pub udp_config: UdpConfig,
    /// The configuration as requested.
    pub requested: UdpConfig,
    /// Descriptors for sockets that reply from other addresses than the listeners', to traffic that TPROXY rules redirect.
    reply_sockets: usize,
}

/// The id of each listener, by its requested address.
pub type ListenerIds = HashMap<ListenerKey, ListenerId>;

/// The address that each listener is bound to, by its requested address.
pub type BoundAddresses = HashMap<ListenerKey, SocketAddr>;

impl OpenedListeners {
    /// Opens the listeners that are configured and not open yet. Ids are taken from `ids`, each once.
    pub fn open_missing(
        plans: &[&ListenPlan],
        workers: usize,
        existing: &ListenerIds,
        inherited: &mut InheritedSockets,
        ids: &mut RangeFrom<u32>,
    ) -> anyhow::Result<Self> {
        let mut wanted_tcp = Vec::new();
        let mut wanted_udp = Vec::new();
        for &plan in plans {
            wanted_tcp.extend(assign_ids(plan, Transport::Tcp, existing, ids));
            let wanted = assign_ids(plan, Transport::Udp, existing, ids);
            if !wanted.is_empty() {
                wanted_udp.push((wanted, plan));
            }
        }
        let existing_tcp = existing_listeners(existing, plans, Transport::Tcp);
        let mut tcp = Listeners::open(&wanted_tcp, &existing_tcp, workers, inherited)?;
        for plan in plans.iter().filter(|plan| plan.transparent) {
            let ids: HashSet<_> = wanted_tcp
                .iter()
                .filter(|(_, addr)| plan.tcp.contains(addr))
                .map(|&(id, _)| id)
                .collect();
            tcp = tcp.with_transparent(|id| ids.contains(&id))?;
        }
        let mut open = Self {
            tcp,
            groups: Vec::new(),
            wanted_tcp,
        };
        let mut existing_udp = existing_listeners(existing, plans, Transport::Udp);
        // Sockets of the previous process are no conflict: it drains none that gets clients of a new one (`check_removed_udp`).
        existing_udp.open.extend(inherited.previous_udp.keys());
        for (wanted, plan) in wanted_udp {
            let group = UdpGroup::open(wanted, plan, &existing_udp, workers, inherited)?;
            existing_udp.open.extend(group.addresses());
            open.groups.push(group);
        }
        Ok(open)
    }

    /// Limits the sessions of each group so that UDP needs at most this many descriptors beside its listeners.
    pub fn limit_sessions(&mut self, udp_descriptors: usize) {
        let per_group = udp_descriptors / self.groups.len().max(1);
        for group in &mut self.groups {
            group.limit_sessions(per_group);
        }
    }

    /// The id of each listener.
    pub fn ids(&self) -> ListenerIds {
        let mut ids = ListenerIds::new();
        for &(id, addr) in &self.wanted_tcp {
            ids.insert((Transport::Tcp, addr), id);
        }
        for &(id, addr) in self.groups.iter().flat_map(|group| &group.wanted) {
            ids.insert((Transport::Udp, addr), id);
        }
        ids
    }

    /// The bound address of each listener, by its requested address: they differ where the kernel chose the port.
    pub fn bound_addresses(&self) -> BoundAddresses {
        let mut all = BoundAddresses::new();
        for (&(_, addr), bound) in self.wanted_tcp.iter().zip(self.tcp.addrs()) {
            all.insert((Transport::Tcp, addr), bound);
        }
        for group in &self.groups {
            for (addr, bound) in group.addresses().zip(group.sockets.addrs()) {
                all.insert((Transport::Udp, addr), bound);
            }
        }
        all
    }

    /// The listeners that leave IPv4 to others (IPV6_V6ONLY).
    pub fn ipv6_only(&self) -> HashSet<ListenerKey> {
        let mut all = marked(Transport::Tcp, &self.wanted_tcp, self.tcp.ipv6_only());
        for group in &self.groups {
            let marks = group.sockets.ipv6_only();
            all.extend(marked(Transport::Udp, &group.wanted, marks));
        }
        all
    }

    /// Descriptors that UDP may use beside its listeners.
    pub fn descriptors(&self) -> usize {
        self.groups.iter().map(UdpGroup::descriptors).sum()
    }

    /// Warns of a group that has fewer sessions than requested.
    pub fn warn_of_few_sessions(&self) {
        for group in &self.groups {
            let sessions = group.udp_config.sessions;
            if sessions < group.requested.sessions {
                tracing::warn!(
                    "UDP sessions at {} are limited to {sessions} by the descriptors that are free now: raise LimitNOFILE; where \
                     connections hold them, an upgrade or a restart divides all anew",
                    ranges(group.addresses())
                );
            }
        }
    }

    /// Logs the features that would make UDP faster and that the kernel lacks.
    pub fn log_kernel_limits(&self) {
        if let Some(group) = self.groups.first() {
            group.sockets.log_kernel_limits();
        }
    }
}

/// Whether a listener on `wide` gets clients of one on `narrow` that closes. One that leaves IPv4 to others (IPV6_V6ONLY) gets no
/// clients of IPv4.
pub(crate) fn gets_clients(wide: SocketAddr, is_ipv6_only: bool, narrow: SocketAddr) -> bool {
    covers(wide, narrow) && !(is_ipv6_only && narrow.is_ipv4())
}

/// Selects the listeners at those of the addresses that are marked.
fn marked(transport: Transport, addrs: &[ListenAddr], marks: Vec<bool>) -> HashSet<ListenerKey> {
    addrs
        .iter()
        .zip(marks)
        .filter_map(|(&(_, addr), is_marked)| is_marked.then_some((transport, addr)))
        .collect()
}

impl UdpGroup {
    /// Opens the UDP listeners of a plan on the wanted addresses.
    fn open(
        wanted: Vec<ListenAddr>,
        plan: &ListenPlan,
        existing: &ExistingListeners,
        workers: usize,
        inherited: &mut InheritedSockets,
    ) -> anyhow::Result<Self> {
        // For datagrams that TPROXY rules redirect, the kernel selects the socket by the sender's port, not by the header.
        let workers = if plan.transparent { 1 } else { workers };
        let mut sockets =
            UdpListeners::open(&wanted, existing, workers, plan.steered_by, inherited)?;
        let mut reply_sockets = 0;
        if plan.transparent {
            sockets = sockets.into_transparent()?;
            reply_sockets = MAX_REPLY_SOCKETS;
        }
        Ok(Self {
            wanted,
            sockets,
            udp_config: plan.udp_config,
            requested: plan.udp_config,
            reply_sockets,
        })
    }

    /// Limits the sessions so that the group needs at most this many descriptors beside its listeners, but allows one session.
    fn limit_sessions(&mut self, descriptors: usize) {
        let others = self.descriptors() - self.udp_config.sessions;
        let sessions = descriptors.saturating_sub(others).max(1);
        self.udp_config.sessions = self.requested.sessions.min(sessions);
    }

    /// The descriptors that the group may use beside its listeners.
    pub fn descriptors(&self) -> usize {
        self.udp_config.sessions + self.reply_sockets + self.sockets.workers() * FDS_PER_UDP_WORKER
    }

    /// The requested addresses.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.wanted.iter().map(|&(_, addr)| addr)
    }
}

/// Draws an id for each address of a plan that has no listener yet.
fn assign_ids(
    plan: &ListenPlan,
    transport: Transport,
    existing: &ListenerIds,
    ids: &mut RangeFrom<u32>,
) -> Vec<ListenAddr> {
    plan.listen(transport)
        .iter()
        .copied()
        .filter(|&addr| !existing.contains_key(&(transport, addr)))
        .zip(ids)
        .map(|(addr, id)| (ListenerId(id), addr))
        .collect()
}

/// The listeners of a protocol that are open, and those that the plans list.
fn existing_listeners(
    existing: &ListenerIds,
    plans: &[&ListenPlan],
    transport: Transport,
) -> ExistingListeners {
    ExistingListeners {
        open: existing
            .keys()
            .filter(|(protocol, _)| *protocol == transport)
            .map(|&(_, addr)| addr)
            .collect(),
        configured: plans
            .iter()
            .flat_map(|plan| plan.listen(transport))
            .copied()
            .collect(),
    }
}

/// Descriptors of a worker of a UDP group: an epoll instance, the socket of a new session before another session is evicted for
/// it, and one by which its share of the sessions is rounded up.
const FDS_PER_UDP_WORKER: usize = 3;
/// The protocols of listeners.
pub const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither sessions nor connections may use the descriptors that are reserved for workers and replies.
    #[test]
    fn workers_and_reply_sockets_have_descriptors_of_their_own() {
        let wanted = vec![(ListenerId(0), SocketAddr::from(([127, 0, 0, 1], 0)))];
        let requested = UdpConfig {
            sessions: 4096,
            ..UdpConfig::default()
        };
        let of_workers = 6;
        for reply_sockets in [0, MAX_REPLY_SOCKETS] {
            let existing = ExistingListeners::default();
            let inherited = &mut InheritedSockets::default();
            let mut group = UdpGroup {
                wanted: wanted.clone(),
                sockets: UdpListeners::open(&wanted, &existing, 2, None, inherited).unwrap(),
                udp_config: requested,
                requested,
                reply_sockets,
            };
            let others = of_workers + reply_sockets;
            group.limit_sessions(1000);
            assert_eq!(group.udp_config.sessions, 1000 - others);
            assert_eq!(group.descriptors(), 1000);
            group.limit_sessions(9000);
            assert_eq!(group.udp_config.sessions, 4096);
            assert_eq!(group.descriptors(), 4096 + others);
        }
    }
}
