//! Handover of a worker's sockets and state: to a new process, and from a previous one.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Instant;

use peername_sys::event::async_epoll::AsyncEpoll;

use super::Worker;
use crate::udp::handover::{ReceivedState, StateSink, send_in_parts};
use crate::udp::session::OverflowCounter;
use crate::udp::session::role::Role;

impl<R: Role> Worker<R> {
    /// Shares the listening sockets.
    pub(super) fn share_sockets(&self) -> Vec<Arc<UdpSocket>> {
        self.listeners
            .iter()
            .map(|listener| Arc::clone(&listener.socket))
            .collect()
    }

    /// Prepares the sessions for a new process and sends their state. The worker must read nothing until the new process serves
    /// or has failed.
    pub(super) fn freeze(&mut self, mut sink: StateSink) -> io::Result<()> {
        let now = Instant::now();
        self.sessions.reclaim_all_from_kernel(now);
        // The new process opens reply sockets of its own at the same addresses.
        self.reply_sockets.close_all();
        let overflows = self
            .listeners
            .iter()
            .map(|listener| listener.overflow.0)
            .collect();
        let (sessions, flows) = self.sessions.states(now);
        send_in_parts(sessions, flows, overflows, &mut sink)
    }

    /// Adds the sessions of a previous process.
    pub(super) fn restore(&mut self, received: Vec<ReceivedState>, poller: &AsyncEpoll) {
        let now = Instant::now();
        for (state, sockets) in received {
            for (listener, overflow) in self.listeners.iter_mut().zip(&state.overflows) {
                listener.overflow = OverflowCounter(*overflow);
            }
            for flow in &state.flows {
                self.sessions.restore_flow(flow, now);
            }
            for (session, socket) in state.sessions.into_iter().zip(sockets) {
                self.sessions.restore(session, socket, now, poller);
            }
        }
    }
}
