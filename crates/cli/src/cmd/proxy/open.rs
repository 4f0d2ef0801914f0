//! The listening sockets, opened before anything is served.

use std::collections::HashMap;
use std::net::SocketAddr;

use peername_proxy::config::Datagrams;
use peername_proxy::listeners::{BindError, Listeners, Wanted};
use peername_proxy::service::{ListenerId, numbered};
use peername_proxy::udp::UdpSockets;
use peername_sys::netlink::Transport;

use super::setup::Setup;
use crate::lifecycle;

/// Every socket that is listened on.
pub(super) struct Open {
    pub(super) tcp: Listeners,
    pub(super) groups: Vec<Group>,
    /// What was asked for, as it was numbered.
    pub(super) wanted_tcp: Vec<Wanted>,
}

/// UDP listeners of one service: their sessions share limits and a dialect.
pub(super) struct Group {
    pub(super) wanted: Vec<Wanted>,
    pub(super) sockets: UdpSockets,
    pub(super) datagrams: Datagrams,
}

impl Open {
    pub(super) fn all(setup: &Setup) -> anyhow::Result<Self> {
        let workers = setup.process.workers();
        let addresses = setup.services.iter().map(|s| s.tcp.len() + s.udp.len());
        lifecycle::require_descriptors(workers, addresses.sum::<usize>() * workers)?;
        let tcp: Vec<_> = setup
            .services
            .iter()
            .flat_map(|s| &s.tcp)
            .copied()
            .collect();
        let wanted_tcp: Vec<_> = numbered(0, &tcp).collect();
        let tcp = Listeners::open(&wanted_tcp, &[], workers)?;
        let with_udp = || setup.services.iter().filter(|s| !s.udp.is_empty());
        let sessions = match with_udp().count() {
            0 => 0,
            groups => lifecycle::descriptors_of_sessions(workers, !wanted_tcp.is_empty())? / groups,
        };
        let mut next = wanted_tcp.len() as u32;
        let mut groups: Vec<Group> = Vec::new();
        for service in with_udp() {
            let wanted: Vec<_> = numbered(next, &service.udp).collect();
            next += wanted.len() as u32;
            let mut datagrams = service.datagrams;
            datagrams.sessions = datagrams.sessions.min(sessions.max(1));
            let beside: Vec<_> = groups.iter().flat_map(|group| &group.wanted).collect();
            let beside: Vec<_> = beside.into_iter().map(|&(_, addr)| addr).collect();
            groups.push(Group::open(wanted, &beside, workers, datagrams)?);
        }
        Ok(Self {
            tcp,
            groups,
            wanted_tcp,
        })
    }

    /// Each listener's number, by what was asked for.
    pub(super) fn numbers(&self) -> HashMap<(Transport, SocketAddr), ListenerId> {
        let udp = self.groups.iter().flat_map(|group| &group.wanted);
        let tcp = self
            .wanted_tcp
            .iter()
            .map(|&(id, addr)| ((Transport::Tcp, addr), id));
        tcp.chain(udp.map(|&(id, addr)| ((Transport::Udp, addr), id)))
            .collect()
    }

    /// Each listener's address, by what was asked for: they differ where the kernel chose the port.
    pub(super) fn actual(&self) -> HashMap<(Transport, SocketAddr), SocketAddr> {
        let key = |transport| move |&(_, addr): &Wanted| (transport, addr);
        let udp = self.groups.iter().flat_map(|group| {
            let wanted = group.wanted.iter().map(key(Transport::Udp));
            wanted.zip(group.sockets.addrs())
        });
        let tcp = self.wanted_tcp.iter().map(key(Transport::Tcp));
        tcp.zip(self.tcp.addrs()).chain(udp).collect()
    }

    /// What of the kernel would make UDP faster, if it has not got it.
    pub(super) fn tell_of_shortcomings(&self) {
        if let Some(group) = self.groups.first() {
            group.sockets.tell_of_shortcomings();
        }
    }
}

impl Group {
    pub(super) fn open(
        wanted: Vec<Wanted>,
        beside: &[SocketAddr],
        workers: usize,
        datagrams: Datagrams,
    ) -> Result<Self, BindError> {
        let sockets = UdpSockets::open(&wanted, beside, workers, Some(datagrams.dialect))?;
        Ok(Self {
            wanted,
            sockets,
            datagrams,
        })
    }
}
