//! Handing connections to the calls of accept(2) that want one.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use peername_identity::shown;
use peername_sys::is_per_connection_error;
use peername_sys::seccomp::AddFdOutcome;
use peername_sys::socket::upstream::local_addr;
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::tcp::{socket_info, stream};

use super::{Answer, Supervisor, known};
use crate::look::{From as Origin, Look, look_at_new, refuse};
use crate::notify::waits::Accepting;

impl Supervisor {
    /// Gives the call a connection, if there is one: one that has waited for the program, or the next one
    /// that has its header.
    pub(super) fn serve(&mut self, call: Accepting, listening: &ForeignListener) -> Answer {
        loop {
            if let Some(connection) = self.attendant.take(call.listener) {
                return self.give_kept(call, connection);
            }
            match listening.accept(call.nonblocking) {
                Ok((connection, peer)) => {
                    if let Some(ready) = self.receive(connection, peer, listening) {
                        return self.give(call, ready);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Answer::Nothing(call);
                }
                Err(error) if is_per_connection_error(&error) => {}
                Err(error) => {
                    self.fail(call, error);
                    return Answer::Given;
                }
            }
        }
    }

    /// Receives a connection. It comes back, with who it is shown as from, if the program may have it now.
    fn receive(
        &mut self,
        connection: OwnedFd,
        peer: Option<SocketAddr>,
        listening: &ForeignListener,
    ) -> Option<(OwnedFd, SocketAddr)> {
        let peer = peer.or_else(|| socket_info::peer_addr(&connection).ok())?;
        if self.is_bell(&connection, peer) {
            return None;
        }
        let from = Origin {
            peer,
            namespace: listening.netns_cookie,
        };
        match look_at_new(self.table, connection.as_fd(), from, &mut self.buffer) {
            Look::Ready(None) => return Some((connection, peer)),
            Look::Ready(Some(client)) => return Some((connection, shown(client, peer.is_ipv6()))),
            Look::Unfinished(_) => self.attendant.park(connection, listening.addr),
            Look::Refused => refuse(connection),
        }
        None
    }

    fn is_bell(&self, connection: &OwnedFd, peer: SocketAddr) -> bool {
        let own = || local_addr(connection).ok().map(|own| own.ip());
        self.table.settings().bells().contains(peer.port()) && own() == Some(peer.ip())
    }

    /// Answers the call with a connection that has waited.
    pub(super) fn give_kept(&mut self, call: Accepting, connection: OwnedFd) -> Answer {
        // One that is gone by now has no peer any more, but its client may still stand in the table; the kernel,
        // too, would return it.
        let nobody = SocketAddr::new(unspecified(call.listener), 0);
        let peer = socket_info::peer_addr(&connection).unwrap_or(nobody);
        let from = known(self.table, &connection)
            .map_or(peer, |identity| shown(identity.client, peer.is_ipv6()));
        // As another call has wanted it, if it was given back. This fails for no socket.
        let _ = stream::set_nonblocking(&connection, call.nonblocking);
        self.give(call, (connection, from))
    }

    /// Answers the call with this connection. Whatever goes wrong, the connection is not lost: it is for
    /// the next call.
    fn give(&mut self, call: Accepting, (connection, from): (OwnedFd, SocketAddr)) -> Answer {
        let calls = &self.ward.calls;
        let given = match self.tell(&call, from) {
            Ok(()) => calls.add_fd(call.id, &connection, call.close_on_exec),
            Err(error) => AddFdOutcome::Rejected(error),
        };
        let listener = call.listener;
        match given {
            AddFdOutcome::Installed => self.ward.ledger.close(call.line),
            AddFdOutcome::CallOver => {
                self.ward.ledger.close(call.line);
                self.offer(connection, listener);
            }
            AddFdOutcome::Rejected(error) => {
                self.fail(call, error);
                self.attendant.give_back(connection, listener);
            }
        }
        Answer::Given
    }

    /// Fills the call's address buffer.
    fn tell(&self, call: &Accepting, from: SocketAddr) -> io::Result<()> {
        if call.peer.is_none() {
            return Ok(());
        }
        let room = call.peer.capacity()?;
        match self.ward.calls.is_pending(call.id) {
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
