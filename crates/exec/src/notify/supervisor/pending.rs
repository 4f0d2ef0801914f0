//! Pending calls of accept(2): how they are kept, served again, and dropped.

use std::io;
use std::time::{Duration, Instant};

use peername_sys::Errno;
use peername_sys::tcp::foreign_listener::ForeignListener;

use super::{ServeOutcome, Supervisor, UnservedCall, is_due};
use crate::header_waiter::ListenerAddr;
use crate::header_waiter::header_peek::AdmittedConnection;
use crate::notify::pending_accepts::AcceptCall;

impl Supervisor {
    pub(super) fn accept(&mut self, call: AcceptCall, listener_copy: ForeignListener) {
        if let ServeOutcome::Unserved(mut unserved) = self.serve(call, listener_copy) {
            unserved.call.deadline = deadline_at(&unserved.listener_copy);
            self.keep(unserved);
        }
    }

    /// Keeps a call until there is a connection for it, or fails it if it may wait no longer. A call that has refused its share
    /// of connections is kept in either case: behind them, there may be a connection for it, and the program would not be
    /// notified of that one again.
    fn keep(&mut self, unserved: UnservedCall) {
        let UnservedCall {
            call,
            listener_copy,
            is_backlog_empty,
        } = unserved;
        if is_backlog_empty && is_due(call.deadline) {
            drop(listener_copy);
            return self.fail(call, Errno::AGAIN);
        }
        let watched = self
            .threads
            .with_room(|| self.pending.watch(&self.epoll, &call, &listener_copy));
        drop(listener_copy);
        match watched {
            Ok(watch) => self.pending.insert(call, watch),
            Err(error) => self.fail(call, error.source),
        }
    }

    /// Hands a ready connection to the oldest pending call at its listener, or returns it to the header waiter.
    pub(super) fn offer(&mut self, admitted: AdmittedConnection, listener: ListenerAddr) {
        let oldest = self.pending.oldest_at(listener);
        match oldest.and_then(|serial| self.pending.remove(&self.epoll, serial)) {
            Some(call) => _ = self.complete_with_ready(call, admitted),
            None => self.waiter.return_ready(admitted, listener),
        }
    }

    /// Serves a pending call again: its listener is ready, or broken, or there is a connection for it, or its deadline has passed.
    pub(super) fn retry_pending(&mut self, serial: u64) {
        let Some(call) = self.pending.remove(&self.epoll, serial) else {
            return;
        };
        let listener_copy = match self.copy_listener(&call) {
            Ok(listener_copy) => listener_copy,
            Err(error) => return self.fail(call, error),
        };
        if let ServeOutcome::Unserved(unserved) = self.serve(call, listener_copy) {
            self.keep(unserved);
        }
    }

    /// Copies the listener of a pending call again.
    ///
    /// # Errors
    ///
    /// EMFILE or ENFILE; else EINVAL: the socket does not listen any more (accept(2)), or another file has its descriptor
    /// number.
    fn copy_listener(&mut self, call: &AcceptCall) -> io::Result<ForeignListener> {
        let copied = self
            .threads
            .with_room(|| call.thread.get_fd(call.fd_number));
        let socket = copied.map_err(|error| {
            if error.is_out_of_descriptors() {
                error.source
            } else {
                Errno::INVAL.into()
            }
        })?;
        self.listeners
            .check(self.table.settings(), socket.into())
            .filter(|listener_copy| ListenerAddr::from(listener_copy) == call.listener_addr)
            .ok_or_else(|| Errno::INVAL.into())
    }

    /// Removes a pending call that is over without an answer.
    pub(super) fn drop_pending(&mut self, serial: u64) {
        if let Some(call) = self.pending.remove(&self.epoll, serial) {
            self.supervised.inflight.remove(&call.slot);
        }
    }

    /// Removes pending calls that a signal has interrupted, which the kernel does not report.
    pub(super) fn drop_interrupted(&mut self) {
        let calls = &self.supervised.calls;
        for serial in self.pending.find(|pending| !calls.is_pending(pending.id)) {
            self.drop_pending(serial);
        }
    }

    pub(super) fn fail(&self, call: AcceptCall, error: impl Into<io::Error>) {
        self.supervised.calls.fail(call.id, &error.into());
        self.supervised.inflight.remove(&call.slot);
    }
}

/// The deadline of a call that begins to wait now at this listener; `None` if it waits for ever.
fn deadline_at(listener: &ForeignListener) -> Option<Instant> {
    let limit = if listener.nonblocking {
        Some(Duration::ZERO)
    } else {
        listener.accept_timeout()
    };
    limit.and_then(|limit| Instant::now().checked_add(limit))
}
