//! What the listeners of a running command hand over at an upgrade.

use std::collections::HashMap;
use std::net::SocketAddr;

use anyhow::Context;
use peername_proxy::udp::FrozenWorkers;
use peername_server::listeners::ListenerId;
use peername_sys::Transport;

use super::running::{RunningListeners, is_transparent};
use crate::handover::udp::{SessionSender, SharedGroup, freeze_groups, share_groups};
use crate::handover::{SharedSocket, SocketInfo};

impl RunningListeners {
    /// Duplicates all listening sockets.
    pub async fn share(&self) -> anyhow::Result<Vec<SharedSocket>> {
        let tcp: HashMap<_, _> = self.own_tcp().map(|(addr, id)| (id, addr)).collect();
        let share = |(id, socket): (ListenerId, std::net::TcpListener)| {
            let addr = *tcp.get(&id)?;
            let info = SocketInfo::Tcp {
                addr,
                transparent: is_transparent(&self.plans, (Transport::Tcp, addr)) == Some(true),
            };
            Some((info, socket.into()))
        };
        let shared = self.workers.share_listeners().await?;
        let mut all: Vec<_> = shared.into_iter().filter_map(share).collect();
        for given in self.given.tcp.values().chain(self.given.udp.values()) {
            let socket = given
                .try_clone()
                .context("a socket of the service manager")?;
            all.push((SocketInfo::Given(given.label.clone()), socket));
        }
        all.extend(share_groups(&self.udp_groups()).await?);
        Ok(all)
    }

    /// Stops reading datagrams of adopted listeners and of their sessions, and sends the sessions.
    ///
    /// # Errors
    ///
    /// Sending failed; all workers resume.
    pub(crate) async fn freeze(
        &self,
        adopted: &[SocketInfo],
        sender: &SessionSender,
    ) -> anyhow::Result<FrozenWorkers> {
        freeze_groups(&self.udp_groups(), adopted, sender).await
    }

    /// Leaves the accept backlogs of adopted listeners to the process that has taken over.
    pub async fn leave(&self, adopted: &[SocketInfo]) {
        let is_adopted = |wanted: &SocketAddr| {
            let mut tcp = adopted.iter();
            tcp.any(|info| matches!(info, SocketInfo::Tcp { addr, .. } if addr == wanted))
        };
        let ids = self.own_tcp().filter(|(addr, _)| is_adopted(addr));
        let ids = ids.map(|(_, id)| id).collect();
        self.workers.leave_backlogs(ids).await;
    }

    /// TCP listeners that this process has opened or taken over. A service manager's sockets are handed over as such.
    fn own_tcp(&self) -> impl Iterator<Item = (SocketAddr, ListenerId)> {
        self.ids.iter().filter_map(|(&(transport, addr), &id)| {
            let is_own = transport == Transport::Tcp && !self.given.tcp.contains_key(&addr);
            is_own.then_some((addr, id))
        })
    }

    fn udp_groups(&self) -> Vec<SharedGroup<'_>> {
        let groups = self.groups.iter().map(|group| {
            let first = group.addresses.first();
            let is_transparent = |&addr| is_transparent(&self.plans, (Transport::Udp, addr));
            SharedGroup {
                addresses: &group.addresses,
                dialect: group.asked.dialect,
                transparent: first.and_then(is_transparent) == Some(true),
                workers: &group.workers,
            }
        });
        groups.collect()
    }
}
