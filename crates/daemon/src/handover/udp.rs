//! UDP listeners and sessions of the old process.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use peername_proxy::udp::{Dialect, FrozenWorkers, StateSink, UdpWorkers};

use super::channel::Channel;
use super::message::{SharedSocket, SocketInfo, ToSuccessor};

/// A group of listeners with common sessions.
pub(crate) struct SharedGroup<'a> {
    /// Their requested addresses, in the order of their indices.
    pub addresses: &'a [SocketAddr],
    pub dialect: Dialect,
    pub transparent: bool,
    pub workers: &'a UdpWorkers,
}

/// Sends sessions to the new process.
#[derive(Clone, Debug)]
pub(crate) struct SessionSender(pub(crate) Arc<Channel>);

impl SessionSender {
    fn for_worker(&self, group: usize, worker: usize) -> StateSink {
        let channel = Arc::clone(&self.0);
        Box::new(move |state, fds| {
            let message = ToSuccessor::sessions(group, worker, state);
            channel.send(&message, fds).map_err(io::Error::other)
        })
    }
}

/// Duplicates the listening sockets of all groups.
pub(crate) async fn share_groups(groups: &[SharedGroup<'_>]) -> anyhow::Result<Vec<SharedSocket>> {
    let mut all = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        let shared = group.workers.share_sockets().await;
        let shared = shared.context("the UDP listeners")?;
        for (worker, sockets) in shared.into_iter().enumerate() {
            let sockets = group.addresses.iter().zip(sockets);
            all.extend(sockets.map(|(&addr, socket)| {
                let info = SocketInfo::Udp {
                    addr,
                    group: number,
                    worker,
                    dialect: group.dialect.to_string(),
                    transparent: group.transparent,
                };
                (info, socket.into())
            }));
        }
    }
    Ok(all)
}

/// Stops reading the adopted listeners and their sessions, and sends the sessions.
///
/// # Errors
///
/// Sending failed; all workers resume.
pub(crate) async fn freeze_groups(
    groups: &[SharedGroup<'_>],
    adopted: &[SocketInfo],
    sender: &SessionSender,
) -> anyhow::Result<FrozenWorkers> {
    let is_adopted = |number: usize| {
        let mut adopted = adopted.iter();
        adopted.any(|info| matches!(info, SocketInfo::Udp { group, .. } if *group == number))
    };
    let mut all = FrozenWorkers::default();
    for (number, group) in groups.iter().enumerate().filter(|(n, _)| is_adopted(*n)) {
        let sink = |worker| sender.for_worker(number, worker);
        let frozen = group.workers.freeze(sink).await;
        all.extend(frozen.context("sending the UDP sessions")?);
    }
    Ok(all)
}
