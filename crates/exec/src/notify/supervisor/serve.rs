//! Hands connections to calls of accept(2).

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsFd;

use peername_identity::Counter;
use peername_sys::ipc::foreign_fd::ForeignFd;
use peername_sys::seccomp::AddFdOutcome;
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::tcp::{socket_info, stream};
use peername_sys::{Errno, NameCall, SyscallError, is_per_connection_error};

use super::{ServeOutcome, Supervisor, UnservedCall};
use crate::header_waiter::header_peek::{
    AdmittedConnection, ConnectionOrigin, PeekOutcome, close_with_reset, peek_accepted,
};
use crate::notify::pending_accepts::AcceptCall;
use crate::stderr_line::try_write_line;

impl Supervisor {
    /// Answers the call with a connection, if there is one: a ready one, or the next accepted one with a complete header. Stops
    /// when too many have been refused in this round of the event loop.
    ///
    /// `listener_copy` is closed before the call is answered: with the answer the program continues, and may close its
    /// listener and bind the address again.
    pub(super) fn serve(
        &mut self,
        call: AcceptCall,
        listener_copy: ForeignListener,
    ) -> ServeOutcome {
        loop {
            if let Some(ready) = self.waiter.take_ready(call.listener_addr) {
                drop(listener_copy);
                return self.complete_with_ready(call, ready);
            }
            let accepted = self
                .threads
                .with_room(|| listener_copy.accept(call.nonblocking).call("accept4(2)"));
            match accepted {
                Ok((connection, peer)) => {
                    if let Some(admitted) = self.admit(connection, peer, &listener_copy) {
                        drop(listener_copy);
                        return self.complete(call, admitted);
                    }
                }
                Err(error) if error.source.kind() == ErrorKind::WouldBlock => {
                    return ServeOutcome::Unserved(UnservedCall {
                        call,
                        listener_copy,
                        is_backlog_empty: true,
                    });
                }
                Err(error) if is_per_connection_error(&error.source) => {}
                Err(error) => {
                    drop(listener_copy);
                    self.fail(call, error.source);
                    return ServeOutcome::Answered;
                }
            }
            if self.refusals_left == 0 {
                return ServeOutcome::Unserved(UnservedCall {
                    call,
                    listener_copy,
                    is_backlog_empty: false,
                });
            }
            self.refusals_left -= 1;
        }
    }

    /// Admits, parks or refuses an accepted connection. Returns it if the program gets it now.
    fn admit(
        &mut self,
        connection: ForeignFd,
        peer: Option<SocketAddr>,
        listener_copy: &ForeignListener,
    ) -> Option<AdmittedConnection> {
        let peer = peer.or_else(|| socket_info::peer_addr(&connection).ok())?;
        let origin = ConnectionOrigin {
            peer,
            namespace: listener_copy.netns_cookie,
        };
        self.waiter.sweep_if_full(connection.as_fd());
        let judge = self.judge.as_deref();
        match peek_accepted(
            self.table,
            connection.as_fd(),
            origin,
            judge,
            &mut self.buffer,
        )? {
            PeekOutcome::Ready(admission) => {
                if let Some(counter) = admission.counter {
                    self.table.settings().count(counter);
                }
                return Some(AdmittedConnection {
                    connection,
                    admission,
                });
            }
            PeekOutcome::Incomplete(_) => {
                self.table.settings().count(Counter::Parked);
                self.waiter.park(connection, listener_copy);
            }
            PeekOutcome::Refused => close_with_reset(connection),
        }
        None
    }

    /// Fails an accept(2) for which no monitor could be started, perhaps because the program has used up processes or
    /// descriptors.
    pub(super) fn refuse_unmonitored(&mut self, id: u64, error: &SyscallError) {
        if !self.monitor_error_logged {
            self.monitor_error_logged = true;
            try_write_line(&format!(
                "peername: a process without the library can't accept yet: {error}"
            ));
        }
        self.supervised.calls.fail(id, &Errno::NOMEM.into());
    }

    /// Answers the call with a connection that was ready.
    pub(super) fn complete_with_ready(
        &mut self,
        call: AcceptCall,
        ready: AdmittedConnection,
    ) -> ServeOutcome {
        // A connection returned after a failed handoff has the blocking mode of another call. This fails for no socket.
        let _ = stream::set_nonblocking(&ready.connection, call.nonblocking);
        self.complete(call, ready)
    }

    /// Answers the call with this connection, which may have been reset, as by the kernel's accept(2). If that fails, the
    /// connection is kept for the next call.
    fn complete(&mut self, call: AcceptCall, admitted: AdmittedConnection) -> ServeOutcome {
        let calls = &self.supervised.calls;
        let installed = match self.write_peer(&call, admitted.admission.shown_peer()) {
            Ok(()) => calls.add_fd(call.id, &admitted.connection, call.close_on_exec),
            Err(error) => AddFdOutcome::Rejected(error),
        };
        let listener = call.listener_addr;
        match installed {
            AddFdOutcome::Installed => self.supervised.inflight.remove(&call.slot),
            AddFdOutcome::CallOver => {
                self.supervised.inflight.remove(&call.slot);
                self.offer(admitted, listener);
            }
            AddFdOutcome::Rejected(error) => {
                self.fail(call, error);
                self.waiter.return_ready(admitted, listener);
            }
        }
        ServeOutcome::Answered
    }

    /// Fills the call's address buffer, if it has one.
    fn write_peer(&self, call: &AcceptCall, shown: SocketAddr) -> io::Result<()> {
        if call.peer.is_null() {
            return Ok(());
        }
        let capacity = call.peer.capacity()?;
        self.write_address(call.id, &call.peer, capacity, shown)
    }
}
