//! What the listeners of a running command hand over at an upgrade.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use peername_proxy::udp::{FrozenWorkers, StateSink};
use peername_server::listeners::ListenerId;
use peername_sys::Transport;

use super::running::{RunningListeners, is_transparent};
use crate::handover::channel::Channel;
use crate::handover::message::ToSuccessor;
use crate::handover::{SharedSocket, SocketInfo};

impl RunningListeners {
    /// Returns all listening sockets.
    pub async fn share(&self) -> anyhow::Result<Vec<SharedSocket>> {
        let own_tcp: HashMap<_, _> = self.own_tcp().map(|(addr, id)| (id, addr)).collect();
        let mut all: Vec<SharedSocket> = Vec::new();
        for (id, socket) in self.workers.share_listeners().await? {
            if let Some(&addr) = own_tcp.get(&id) {
                let info = SocketInfo::Tcp {
                    addr,
                    transparent: is_transparent(&self.plans, (Transport::Tcp, addr)) == Some(true),
                };
                all.push((info, socket));
            }
        }
        for socket in self
            .inherited
            .tcp
            .values()
            .chain(self.inherited.udp.values())
        {
            let shared = socket
                .try_clone()
                .context("a socket of the service manager")?;
            all.push((SocketInfo::Given(socket.label.clone()), Arc::new(shared)));
        }
        all.extend(self.share_udp().await?);
        Ok(all)
    }

    async fn share_udp(&self) -> anyhow::Result<Vec<SharedSocket>> {
        let mut all: Vec<SharedSocket> = Vec::new();
        for (number, group) in self.groups.iter().enumerate() {
            let shared = group
                .workers
                .share_sockets()
                .await
                .context("the UDP listeners")?;
            for (worker, sockets) in shared.into_iter().enumerate() {
                for (&addr, socket) in group.addresses.iter().zip(sockets) {
                    let key = (Transport::Udp, addr);
                    let info = SocketInfo::Udp {
                        addr,
                        group: number,
                        worker,
                        dialect: group.requested.dialect.to_string(),
                        transparent: is_transparent(&self.plans, key) == Some(true),
                    };
                    all.push((info, socket));
                }
            }
        }
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
        channel: &Arc<Channel>,
    ) -> anyhow::Result<FrozenWorkers> {
        let mut all = FrozenWorkers::default();
        for (number, group) in self.groups.iter().enumerate() {
            if is_group_adopted(adopted, number) {
                let frozen = group
                    .workers
                    .freeze(|worker| session_sink(Arc::clone(channel), number, worker))
                    .await;
                all.extend(frozen.context("sending the UDP sessions")?);
            }
        }
        Ok(all)
    }

    /// Leaves the accept backlogs of adopted listeners to the process that has taken over.
    pub async fn leave_backlogs(&self, adopted: &[SocketInfo]) {
        let is_adopted = |wanted: &SocketAddr| {
            let mut adopted = adopted.iter();
            adopted.any(|info| matches!(info, SocketInfo::Tcp { addr, .. } if addr == wanted))
        };
        let ids = self
            .own_tcp()
            .filter(|(addr, _)| is_adopted(addr))
            .map(|(_, id)| id)
            .collect();
        self.workers.leave_backlogs(ids).await;
    }

    /// The TCP listeners that this process has opened or taken over, without those of a service manager, which are handed over
    /// separately.
    fn own_tcp(&self) -> impl Iterator<Item = (SocketAddr, ListenerId)> {
        self.ids.iter().filter_map(|(&(transport, addr), &id)| {
            let is_own = transport == Transport::Tcp && !self.inherited.tcp.contains_key(&addr);
            is_own.then_some((addr, id))
        })
    }
}

/// Sends the sessions of one worker of a group to the process that takes over.
fn session_sink(channel: Arc<Channel>, group: usize, worker: usize) -> StateSink {
    Box::new(move |state, fds| {
        let message = ToSuccessor::Sessions {
            group,
            worker,
            state,
        };
        channel.send(&message, fds).map_err(io::Error::other)
    })
}

/// Whether the process that takes over has adopted sockets of this group of UDP listeners.
fn is_group_adopted(adopted: &[SocketInfo], number: usize) -> bool {
    adopted
        .iter()
        .any(|info| matches!(info, SocketInfo::Udp { group, .. } if *group == number))
}
