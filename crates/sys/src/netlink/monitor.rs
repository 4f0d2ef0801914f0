//! Notifications of changes (`ip monitor`, `nft monitor`), by netlink multicast groups.

use std::io;

use futures_util::StreamExt;
use futures_util::future::join;
use rtnetlink::packet_core::NetlinkMessage;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::AbortHandle;

use crate::{NameCall, Result};

/// A subscription to changes of one kind.
#[derive(Debug)]
pub struct Monitor<T> {
    changes: mpsc::Receiver<T>,
    pump: AbortHandle,
}

impl<T: Send + 'static> Monitor<T> {
    /// Subscribes to these groups of rtnetlink(7). Errors name `call`. `change` returns `None` for a message that does not
    /// matter.
    pub(super) fn subscribe_to(
        call: &'static str,
        groups: &[MulticastGroup],
        change: fn(&NetlinkMessage<RouteNetlinkMessage>) -> Option<T>,
    ) -> Result<Self> {
        let (connection, _, mut messages) = new_multicast_connection(groups).call(call)?;
        let (sender, changes) = mpsc::channel(MAX_UNREAD);
        let forward = async move {
            while let Some((message, _)) = messages.next().await {
                if !queue(&sender, change(&message)) {
                    return;
                }
            }
        };
        let pump = tokio::spawn(join(connection, forward)).abort_handle();
        Ok(Self { changes, pump })
    }

    /// Starts the task `pump`, and subscribes to the changes that it sends.
    pub(super) fn spawn<F>(pump: impl FnOnce(mpsc::Sender<T>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, changes) = mpsc::channel(MAX_UNREAD);
        let pump = tokio::spawn(pump(sender)).abort_handle();
        Self { changes, pump }
    }

    /// Waits for the next change. A full queue drops changes, so read the whole state again once it is empty. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`] when the socket is closed.
    pub async fn next(&mut self) -> Result<T> {
        self.changes
            .recv()
            .await
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
            .call("recv(AF_NETLINK)")
    }

    /// Takes a change that was received already, without waiting.
    pub fn try_next(&mut self) -> Option<T> {
        self.changes.try_recv().ok()
    }
}

impl<T> Drop for Monitor<T> {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

/// Queues a change, if there is one; returns `false` once the subscription was dropped. A full queue drops the change: its
/// reader reads the whole state again in any case ([`Monitor::next`]).
pub(super) fn queue<T>(sender: &mpsc::Sender<T>, change: Option<T>) -> bool {
    let Some(change) = change else {
        return true;
    };
    !matches!(sender.try_send(change), Err(TrySendError::Closed(_)))
}

/// Capacity of the queue of unread changes.
const MAX_UNREAD: usize = 4096;
