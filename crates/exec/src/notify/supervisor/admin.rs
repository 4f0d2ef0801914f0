//! The supervisor's side of the admin endpoint ([`crate::admin`]): liveness and gauges.

use std::os::fd::OwnedFd;

use peername_identity::Gauge;
use peername_sys::event::epoll::Interest;
use peername_sys::{NameCall, Result};

use super::Supervisor;
use crate::admin::LivenessSocket;
use crate::client_judge::ClientJudge;
use crate::notify::epoll_token::EpollToken;

impl Supervisor {
    /// Answers the process of the admin endpoint from now on.
    pub(in crate::notify) fn answer_admin(&mut self, socket: OwnedFd) -> Result<()> {
        let socket = LivenessSocket::new(socket).call("ioctl(FIONBIO)")?;
        self.epoll
            .add(&socket, EpollToken::Admin.into(), Interest::Readable)?;
        self.admin = Some(socket);
        Ok(())
    }

    /// Stores the gauges, for the admin endpoint.
    pub(super) fn store_gauges(&self) {
        let (pending, ready) = self.waiter.counts();
        let judge = self.judge.as_deref();
        let has_stale_lists = judge.is_some_and(ClientJudge::has_stale_lists);
        for (gauge, value) in [
            (Gauge::PendingHeaders, pending),
            (Gauge::ReadyConnections, ready),
            (Gauge::PendingAccepts, self.pending.len()),
            (Gauge::StaleLists, usize::from(has_stale_lists)),
        ] {
            self.table.settings().set_gauge(gauge, value as u64);
        }
    }

    /// Answers a request, or closes the socket if the process of the admin endpoint has exited.
    pub(super) fn serve_admin(&mut self) {
        let socket = self.admin.take();
        self.admin = socket.and_then(LivenessSocket::answer_or_close);
    }
}
