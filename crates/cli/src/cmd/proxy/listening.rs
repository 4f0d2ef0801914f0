//! Opens the listening sockets, before any of them is served.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::ops::RangeFrom;

use peername_proxy::udp::{MAX_REPLY_SOCKETS, UdpConfig, UdpListeners};
use peername_server::listeners::ListenerId;
use peername_server::listeners::{ExistingListeners, InheritedSockets, ListenAddr, Listeners};
use peername_sys::netlink::Transport;

use super::setup::{ServicePlan, Setup};

/// Open listening sockets that no worker serves yet.
pub(super) struct OpenedListeners {
    pub(super) tcp: Listeners,
    pub(super) groups: Vec<UdpGroup>,
    /// The ids of the requested addresses.
    wanted_tcp: Vec<ListenAddr>,
}

/// The UDP listeners of one service: their sessions share limits and a dialect.
pub(super) struct UdpGroup {
    wanted: Vec<ListenAddr>,
    pub(super) sockets: UdpListeners,
    /// The configuration in use: at most as many sessions as there are descriptors for.
    pub(super) datagrams: UdpConfig,
    /// The configuration as requested.
    pub(super) asked: UdpConfig,
    /// Descriptors for replies from other addresses than the listeners'.
    reply_sockets: usize,
}

/// The id of each listener, by its requested address.
pub(super) type ListenerIds = HashMap<(Transport, SocketAddr), ListenerId>;

/// The address that each listener is bound to, by its requested address.
pub(super) type BoundAddresses = HashMap<(Transport, SocketAddr), SocketAddr>;

impl OpenedListeners {
    /// Opens the listeners that are configured and not open yet. UDP, its sessions included, gets a limited number of
    /// descriptors. Ids are taken from `ids`, none of them twice.
    pub(super) fn missing(
        setup: &Setup,
        there: &ListenerIds,
        descriptors_of_udp: usize,
        given: &InheritedSockets,
        ids: &mut RangeFrom<u32>,
    ) -> anyhow::Result<Self> {
        let workers = setup.process.workers();
        let mut number = |plan: &ServicePlan, transport| -> Vec<ListenAddr> {
            let addrs = plan.listen(transport).iter().copied();
            let new = addrs.filter(|&addr| !there.contains_key(&(transport, addr)));
            new.zip(&mut *ids)
                .map(|(addr, id)| (ListenerId(id), addr))
                .collect()
        };
        let mut wanted_tcp = Vec::new();
        let mut wanted_udp = Vec::new();
        for plan in &setup.services {
            wanted_tcp.extend(number(plan, Transport::Tcp));
            match number(plan, Transport::Udp) {
                none if none.is_empty() => {}
                wanted => wanted_udp.push((wanted, plan)),
            }
        }
        let all_udp = wanted_udp.iter().map(|(wanted, _)| wanted.len());
        let addresses = wanted_tcp.len() + all_udp.sum::<usize>();
        let beside = open_already(there, setup, Transport::Tcp);
        let mut tcp = Listeners::open(&wanted_tcp, &beside, workers, given)?;
        for plan in setup.services.iter().filter(|s| s.config.transparent) {
            let ids = wanted_tcp
                .iter()
                .filter(|(_, addr)| plan.tcp.contains(addr));
            let ids: HashSet<_> = ids.map(|&(id, _)| id).collect();
            tcp = tcp.with_transparent(|id| ids.contains(&id))?;
        }
        let mut open = Self {
            tcp,
            groups: Vec::new(),
            wanted_tcp,
        };
        let descriptors = descriptors_of_udp.saturating_sub(addresses * workers);
        let share = descriptors.div_ceil(wanted_udp.len().max(1)).max(1);
        let mut beside = open_already(there, setup, Transport::Udp);
        for (wanted, plan) in wanted_udp {
            let (asked, transparent) = (plan.datagrams, plan.config.transparent);
            // For datagrams that TPROXY rules redirect, the kernel selects the socket by the sender's port, not by the
            // header.
            let workers = if transparent { 1 } else { workers };
            let sockets =
                UdpListeners::open(&wanted, &beside, workers, Some(asked.dialect), given)?;
            let group = match transparent {
                true => UdpGroup::transparent(wanted, sockets.into_transparent()?, asked, share),
                false => UdpGroup::new(wanted, sockets, asked, share),
            };
            beside.staying.extend(group.addresses());
            open.groups.push(group);
        }
        Ok(open)
    }

    /// The id of each listener.
    pub(super) fn numbers(&self) -> ListenerIds {
        let udp = self.groups.iter().flat_map(|group| &group.wanted);
        let tcp = self.wanted_tcp.iter();
        tcp.map(|&(id, addr)| ((Transport::Tcp, addr), id))
            .chain(udp.map(|&(id, addr)| ((Transport::Udp, addr), id)))
            .collect()
    }

    /// The bound address of each listener, by its requested address: they differ where the kernel chose the port.
    pub(super) fn actual(&self) -> BoundAddresses {
        let key = |transport| move |&(_, addr): &ListenAddr| (transport, addr);
        let udp = self.groups.iter().flat_map(|group| {
            let wanted = group.wanted.iter().map(key(Transport::Udp));
            wanted.zip(group.sockets.addrs())
        });
        let tcp = self.wanted_tcp.iter().map(key(Transport::Tcp));
        tcp.zip(self.tcp.addrs()).chain(udp).collect()
    }

    /// Descriptors that UDP may use beside its listeners.
    pub(super) fn descriptors(&self) -> usize {
        self.groups.iter().map(UdpGroup::descriptors).sum()
    }

    /// Logs the features that would make UDP faster and that the kernel lacks.
    pub(super) fn log_kernel_limits(&self) {
        if let Some(group) = self.groups.first() {
            group.sockets.log_kernel_limits();
        }
    }
}

impl UdpGroup {
    fn new(
        wanted: Vec<ListenAddr>,
        sockets: UdpListeners,
        asked: UdpConfig,
        descriptors: usize,
    ) -> Self {
        let sessions = asked.sessions.min(descriptors);
        Self {
            wanted,
            sockets,
            datagrams: UdpConfig { sessions, ..asked },
            asked,
            reply_sockets: 0,
        }
    }

    /// A group that accepts traffic redirected by TPROXY rules; some descriptors are for replies from other addresses then.
    fn transparent(
        wanted: Vec<ListenAddr>,
        sockets: UdpListeners,
        asked: UdpConfig,
        descriptors: usize,
    ) -> Self {
        let reply_sockets = MAX_REPLY_SOCKETS;
        let descriptors = descriptors.saturating_sub(reply_sockets).max(1);
        Self {
            reply_sockets,
            ..Self::new(wanted, sockets, asked, descriptors)
        }
    }

    /// The descriptors that the group may use beside its listeners.
    pub(super) fn descriptors(&self) -> usize {
        self.datagrams.sessions + self.reply_sockets
    }

    /// The requested addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.wanted.iter().map(|&(_, addr)| addr)
    }
}

fn open_already(there: &ListenerIds, setup: &Setup, transport: Transport) -> ExistingListeners {
    let wanted: HashSet<_> = setup.listen(transport).collect();
    let of = there.keys().filter(|(of, _)| *of == transport);
    let (staying, closing) = of
        .map(|&(_, addr)| addr)
        .partition(|addr| wanted.contains(addr));
    ExistingListeners { staying, closing }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Descriptors that are reserved for replies are available neither to sessions nor to connections.
    #[test]
    fn sockets_for_answers_have_descriptors_of_their_own() {
        let wanted = vec![(ListenerId(0), SocketAddr::from(([127, 0, 0, 1], 0)))];
        let open = || {
            UdpListeners::open(
                &wanted,
                &ExistingListeners::default(),
                1,
                None,
                &InheritedSockets::default(),
            )
            .unwrap()
        };
        let asked = UdpConfig {
            sessions: 4096,
            ..UdpConfig::default()
        };
        for (descriptors, sessions) in [(1000, 1000 - MAX_REPLY_SOCKETS), (9000, 4096)] {
            let group = UdpGroup::transparent(wanted.clone(), open(), asked, descriptors);
            assert_eq!(group.datagrams.sessions, sessions);
            assert_eq!(group.descriptors(), sessions + MAX_REPLY_SOCKETS);
            let group = UdpGroup::new(wanted.clone(), open(), asked, descriptors);
            assert_eq!(group.descriptors(), descriptors.min(4096));
        }
    }
}
