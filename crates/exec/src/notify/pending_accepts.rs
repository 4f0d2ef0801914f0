//! Pending calls of accept(2): those that wait for a connection, or for their turn.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Instant;

use peername_sys::Result;
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::process::pidfd::ThreadFd;
use peername_sys::seccomp::AddressBuffer;
use peername_sys::tcp::foreign_listener::ForeignListener;

use super::epoll_token::EpollToken;
use super::inflight_calls::InflightSlot;
use crate::header_waiter::ListenerAddr;

/// A call of accept(2) or accept4(2).
#[derive(Debug)]
pub(super) struct AcceptCall {
    pub(super) id: u64,
    pub(super) tid: u32,
    /// The calling thread; readable once it has exited.
    pub(super) thread: Rc<ThreadFd>,
    /// The number of the listener's descriptor in the program.
    pub(super) fd_number: RawFd,
    pub(super) listener_addr: ListenerAddr,
    pub(super) peer: AddressBuffer,
    /// The requested flags of the new socket.
    pub(super) nonblocking: bool,
    pub(super) close_on_exec: bool,
    /// When the call fails with EAGAIN if there is no connection; `None` if never, or if it has not begun to wait.
    pub(super) deadline: Option<Instant>,
    /// The call's slot in the record of in-flight calls.
    pub(super) slot: InflightSlot,
}

/// The pending calls.
#[derive(Debug, Default)]
pub(super) struct PendingAccepts {
    /// By serial number, so that the oldest is first.
    all: BTreeMap<u64, PendingAccept>,
    next_serial: u64,
}

#[derive(Debug)]
struct PendingAccept {
    call: AcceptCall,
    /// An epoll instance that becomes readable when the listener does. Unlike a descriptor of the listener it does not keep the
    /// listener open: the port must be free once the program has closed the listener, even if the end of the call was not
    /// noticed yet. Each call has an instance of its own, so dropping the instance ends the registration.
    watch: Epoll,
}

impl PendingAccepts {
    /// Watches the listener and the thread of the call that is inserted next. Returns the epoll instance of the listener.
    ///
    /// # Errors
    ///
    /// EMFILE or ENFILE of epoll_create1(2), ENOMEM or ENOSPC of epoll_ctl(2).
    pub(super) fn watch(
        &self,
        epoll: &Epoll,
        call: &AcceptCall,
        listener_copy: &ForeignListener,
    ) -> Result<Epoll> {
        let serial = self.next_serial;
        let ready = EpollToken::ListenerReady(serial).into();
        let exited = EpollToken::ThreadExited(serial).into();
        let watch = Epoll::new()?;
        watch.add(listener_copy, 0, Interest::Readable)?;
        epoll.add(&watch, ready, Interest::Readable)?;
        epoll.add(&*call.thread, exited, Interest::Readable)?;
        Ok(watch)
    }

    /// Adds a call that waits for its listener, with what [`PendingAccepts::watch`] has returned for it.
    pub(super) fn insert(&mut self, call: AcceptCall, watch: Epoll) {
        let pending = PendingAccept { call, watch };
        self.all.insert(self.next_serial, pending);
        self.next_serial += 1;
    }

    /// Removes a call.
    pub(super) fn remove(&mut self, epoll: &Epoll, serial: u64) -> Option<AcceptCall> {
        let PendingAccept { call, watch } = self.all.remove(&serial)?;
        let _ = epoll.delete(&watch);
        let _ = epoll.delete(&*call.thread);
        Some(call)
    }

    /// The serial number of the oldest call that waits at this address.
    pub(super) fn oldest_at(&self, listener: ListenerAddr) -> Option<u64> {
        let oldest = self
            .all
            .iter()
            .find(|(_, pending)| pending.call.listener_addr == listener);
        oldest.map(|(&serial, _)| serial)
    }

    /// The serial numbers of the calls that match `predicate`.
    pub(super) fn find(&self, predicate: impl Fn(&AcceptCall) -> bool) -> Vec<u64> {
        self.all
            .iter()
            .filter(|(_, pending)| predicate(&pending.call))
            .map(|(&serial, _)| serial)
            .collect()
    }

    /// When the first call fails if there is no connection for it.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let deadlines = self.all.values().map(|pending| pending.call.deadline);
        deadlines.flatten().min()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
