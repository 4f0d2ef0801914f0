//! Hands connections to calls of accept(2).

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsFd;

use peername_identity::{Counter, as_socket_family};
use peername_sys::ipc::foreign_fd::ForeignFd;
use peername_sys::process::stderr::try_write_line;
use peername_sys::seccomp::AddFdOutcome;
use peername_sys::socket::upstream::local_addr;
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::tcp::{socket_info, stream};
use peername_sys::{Errno, SyscallError, is_per_connection_error};

use super::names::lookup_identity;
use super::{Answer, Supervisor};
use crate::header_peek::{ConnectionOrigin, PeekOutcome, close_with_reset, peek_accepted};
use crate::notify::pending_accepts::AcceptCall;

impl Supervisor {
    /// Answers the call with a connection, if there is one: a ready one, or the next accepted one with a complete header.
    ///
    /// The copy of the listener is closed before the call is answered: with the answer the program goes on, and may close
    /// its own and bind the address again.
    pub(super) fn serve(&mut self, call: AcceptCall, listening: ForeignListener) -> Answer {
        loop {
            if let Some(connection) = self.waiter.take_ready(call.listener) {
                drop(listening);
                return self.complete_with_ready(call, connection);
            }
            match listening.accept(call.nonblocking) {
                Ok((connection, peer)) => {
                    if let Some(ready) = self.admit(connection, peer, &listening) {
                        drop(listening);
                        return self.complete(call, ready);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Answer::Nothing(call, listening);
                }
                Err(error) if is_per_connection_error(&error) => {}
                Err(error) => {
                    drop(listening);
                    self.fail(call, error);
                    return Answer::Given;
                }
            }
        }
    }

    /// Admits an accepted connection. Returns it with the peer address to show, if the program may have it now.
    fn admit(
        &mut self,
        connection: ForeignFd,
        peer: Option<SocketAddr>,
        listening: &ForeignListener,
    ) -> Option<(ForeignFd, SocketAddr)> {
        let peer = peer.or_else(|| socket_info::peer_addr(&connection).ok())?;
        if self.is_wakeup(&connection, peer) {
            return None;
        }
        let from = ConnectionOrigin {
            peer,
            namespace: listening.netns_cookie,
        };
        self.waiter.sweep_if_full(connection.as_fd());
        let judge = self.clients.as_deref();
        match peek_accepted(
            self.table,
            connection.as_fd(),
            from,
            judge,
            &mut self.buffer,
        ) {
            PeekOutcome::Ready(None) => return Some((connection, peer)),
            PeekOutcome::Ready(Some(client)) => {
                return Some((connection, as_socket_family(client, peer.is_ipv6())));
            }
            PeekOutcome::Incomplete(_) => {
                self.table.settings().count(Counter::Parked);
                self.waiter.park(connection, listening);
            }
            PeekOutcome::Refused => close_with_reset(connection),
        }
        None
    }

    /// Fails an accept(2) for which no monitor could be started: the program may have taken all processes or descriptors.
    pub(super) fn refuse_unmonitored(&mut self, id: u64, error: &SyscallError) {
        if !self.monitor_error_logged {
            self.monitor_error_logged = true;
            try_write_line(&format!(
                "peername: a process without the library can't accept yet: {error}"
            ));
        }
        self.supervised.calls.fail(id, &Errno::NOMEM.into());
    }

    fn is_wakeup(&self, connection: &ForeignFd, peer: SocketAddr) -> bool {
        let own = || local_addr(connection).ok().map(|own| own.ip());
        self.table.settings().wakeup_ports().contains(peer.port()) && own() == Some(peer.ip())
    }

    /// Answers the call with a connection that was ready.
    pub(super) fn complete_with_ready(
        &mut self,
        call: AcceptCall,
        connection: ForeignFd,
    ) -> Answer {
        // A connection that was reset has no peer any more, but its client may still be in the table. The kernel, too, would
        // return such a connection.
        let unknown = SocketAddr::new(unspecified(call.listener.addr), 0);
        let peer = socket_info::peer_addr(&connection).unwrap_or(unknown);
        let from = lookup_identity(self.table, &connection).map_or(peer, |identity| {
            as_socket_family(identity.client, peer.is_ipv6())
        });
        // A connection returned after a failed handoff has the blocking mode of another call. This fails for no socket.
        let _ = stream::set_nonblocking(&connection, call.nonblocking);
        self.complete(call, (connection, from))
    }

    /// Answers the call with this connection. If that fails, the connection is kept for the next call.
    fn complete(
        &mut self,
        call: AcceptCall,
        (connection, from): (ForeignFd, SocketAddr),
    ) -> Answer {
        let calls = &self.supervised.calls;
        let installed = match self.write_peer(&call, from) {
            Ok(()) => calls.add_fd(call.id, &connection, call.close_on_exec),
            Err(error) => AddFdOutcome::Rejected(error),
        };
        let listener = call.listener;
        match installed {
            AddFdOutcome::Installed => self.supervised.inflight.remove(&call.slot),
            AddFdOutcome::CallOver => {
                self.supervised.inflight.remove(&call.slot);
                self.offer(connection, listener);
            }
            AddFdOutcome::Rejected(error) => {
                self.fail(call, error);
                self.waiter.return_ready(connection, listener);
            }
        }
        Answer::Given
    }

    /// Fills the call's address buffer.
    fn write_peer(&self, call: &AcceptCall, from: SocketAddr) -> io::Result<()> {
        if call.peer.is_none() {
            return Ok(());
        }
        let room = call.peer.capacity()?;
        match self.supervised.calls.is_pending(call.id) {
            true => call.peer.write(from, room),
            false => Ok(()),
        }
    }
}

fn unspecified(listener: SocketAddr) -> std::net::IpAddr {
    match listener {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}
