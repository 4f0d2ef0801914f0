//! Sends the UDP sessions of the old process to the new one.

use std::io;
use std::sync::Arc;

use peername_proxy::udp::StateSink;

use super::channel::Channel;
use super::message::ToSuccessor;

/// Sends sessions to the new process.
#[derive(Clone, Debug)]
pub(crate) struct SessionSender(pub(crate) Arc<Channel>);

impl SessionSender {
    /// Returns the sink for the sessions of one worker of a group.
    pub(crate) fn for_worker(&self, group: usize, worker: usize) -> StateSink {
        let channel = Arc::clone(&self.0);
        Box::new(move |state, fds| {
            let message = ToSuccessor::sessions(group, worker, state);
            channel.send(&message, fds).map_err(io::Error::other)
        })
    }
}
