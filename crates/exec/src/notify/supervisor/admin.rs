//! What the supervisor does for its admin endpoint ([`crate::admin`]).

use std::os::fd::OwnedFd;

use peername_identity::Gauge;
use peername_sys::event::epoll::Interest;
use peername_sys::process::stderr::try_write_line;
use peername_sys::{NameCall, Result};

use super::Supervisor;
use crate::notify::admin_line::AdminLine;
use crate::notify::epoll_token::EpollToken;

impl Supervisor {
    /// Answers the process of the admin endpoint from now on.
    ///
    /// # Errors
    ///
    /// Those of epoll_ctl(2).
    pub(in crate::notify) fn answer_admin(&mut self, line: OwnedFd) -> Result<()> {
        let line = AdminLine::new(line).call("ioctl(FIONBIO)")?;
        self.epoll
            .add(&line, EpollToken::Admin.into(), Interest::Readable)?;
        self.admin = Some(line);
        Ok(())
    }

    /// Stores what is held while the loop waits, for the admin endpoint.
    pub(super) fn store_gauges(&self) {
        let (pending, ready) = self.waiter.counts();
        for (gauge, value) in [
            (Gauge::PendingHeaders, pending),
            (Gauge::ReadyConnections, ready),
            (Gauge::PendingAccepts, self.pending.len()),
        ] {
            self.table.settings().set_gauge(gauge, value as u64);
        }
    }

    /// Answers a request, or notes that the process has exited.
    pub(super) fn serve_admin(&mut self) {
        if let Some(mut line) = self.admin.take() {
            if line.answer() {
                self.admin = Some(line);
            } else {
                try_write_line(
                    "peername: the process of the admin endpoint has exited: nothing answers there any more",
                );
            }
        }
    }
}
