//! The program's descriptors, and getpeername(2) and getsockname(2) of its connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, RawFd};
use std::rc::Rc;

use peername_identity::{Identity, Table, as_socket_family};
use peername_sys::ipc::foreign_fd::ForeignFd;
use peername_sys::process::pidfd::ThreadFd;
use peername_sys::seccomp::{AddressBuffer, Endpoint, Notification};
use peername_sys::socket::upstream::local_addr;
use peername_sys::tcp::socket_info;

use super::{HandedBackCall, Supervisor};
use crate::sockets::ProgramSocket;

impl Supervisor {
    /// Copies a descriptor of the program. If that fails, the call is answered with the error, or handed back.
    pub(super) fn descriptor(
        &mut self,
        call: &Notification,
        number: RawFd,
    ) -> Option<(Rc<ThreadFd>, ForeignFd)> {
        let calls = &self.supervised.calls;
        let error = match self.threads.descriptor(calls, call, number) {
            Ok(found) => return found,
            Err(error) => error,
        };
        if error.is_permission() {
            if let Some(handed_back) = &mut self.handed_back {
                handed_back.push(HandedBackCall {
                    call: *call,
                    denial: Some(error),
                    network: Ok(None),
                });
                return None;
            }
            self.denial_log.write(&error);
        }
        calls.fail(call.id, &error.source);
        None
    }

    /// Answers getpeername(2) or getsockname(2) for a socket.
    pub(super) fn answer_name(
        &self,
        id: u64,
        socket: &ForeignFd,
        end: Endpoint,
        buffer: AddressBuffer,
    ) {
        let Some(identity) = lookup_identity(self.table, socket) else {
            return self.supervised.calls.continue_syscall(id);
        };
        let named = match end {
            Endpoint::Peer => identity.client,
            Endpoint::Local => identity.destination,
        };
        let written = buffer.capacity().and_then(|capacity| {
            let shown = as_socket_family(named, real_addr(socket, end)?.is_ipv6());
            self.write_address(id, &buffer, capacity, shown)
        });
        match written {
            Ok(()) => self.supervised.calls.succeed(id),
            Err(error) => self.supervised.calls.fail(id, &error),
        }
    }

    /// Fills the address buffer of a call, unless the call is over: its thread may have other data there by then.
    pub(super) fn write_address(
        &self,
        id: u64,
        buffer: &AddressBuffer,
        capacity: usize,
        addr: SocketAddr,
    ) -> io::Result<()> {
        if self.supervised.calls.is_pending(id) {
            buffer.write(addr, capacity)
        } else {
            Ok(())
        }
    }
}

/// The address that the kernel would return. After a reset a socket has no peer any more, but still its local address.
fn real_addr(socket: &ForeignFd, end: Endpoint) -> io::Result<SocketAddr> {
    match end {
        Endpoint::Peer => socket_info::peer_addr(socket),
        Endpoint::Local => local_addr(socket).map_err(|error| error.source),
    }
}

/// The identity of this socket's peer, if its header named one.
fn lookup_identity(table: Table<'_>, socket: &ForeignFd) -> Option<Identity> {
    let peer = socket_info::peer_addr(socket).ok();
    table.look_up(&ProgramSocket(socket.as_fd()), peer)
}
