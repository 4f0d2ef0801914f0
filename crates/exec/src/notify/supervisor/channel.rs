//! Calls of processes with the library: requests for a channel to the header waiter, and listen(2).

use std::os::fd::{OwnedFd, RawFd};

use peername_sys::Errno;
use peername_sys::seccomp::{AddFdOutcome, Notification, NotificationListener};
use peername_sys::socket::upstream::local_addr;

use super::Supervisor;
use crate::header_waiter::ListenerAddr;

impl Supervisor {
    pub(super) fn serve_channels(&mut self) {
        if let Some(channels) = &mut self.channels {
            channels.serve(&mut self.waiter);
        }
    }

    /// Notes a socket that is about to listen: ready connections may be waiting for a listener at its address. If the socket
    /// can't be copied for want of a permission, it is noted at its first accept(2).
    pub(super) fn note_listener(&mut self, call: &Notification, number: RawFd) {
        let calls = &self.supervised.calls;
        let Ok(Some((_, socket))) = self.threads.descriptor(calls, call, number) else {
            return;
        };
        if let Ok(addr) = local_addr(&socket) {
            self.waiter.note_port(addr.port());
            if self.table.settings().covers(addr.port()) {
                let at = ListenerAddr::of_bound(&socket, addr);
                self.waiter.note_listener(&socket, at);
            }
        }
    }

    /// Answers the call with the caller's end of a channel to the header waiter.
    pub(super) fn answer_with_channel(
        calls: &NotificationListener,
        id: u64,
        opened: peername_sys::Result<OwnedFd>,
    ) {
        let rejected = match opened {
            Ok(socket) => match calls.add_fd(id, socket, true) {
                AddFdOutcome::Installed | AddFdOutcome::CallOver => return,
                AddFdOutcome::Rejected(error) => error,
            },
            // Not EMFILE, which would mean that the program has no descriptor.
            Err(_) => Errno::AGAIN.into(),
        };
        calls.fail(id, &rejected);
    }
}
