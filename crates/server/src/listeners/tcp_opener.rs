//! Opens TCP sockets, and takes those of a previous process.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{self, SocketAddr};
use std::sync::Arc;

use peername_sys::Transport;
use peername_sys::ipc::inherited_socket::InheritedSocket;
use peername_sys::socket::BindOptions;
use peername_sys::tcp::{listener, stream};

use super::per_worker::SocketOpener;
use super::worker_listener::{ListenAddr, Listener};
use crate::addr::LocalAddr;

/// Opens TCP sockets, which do not listen yet, or takes those that other processes have opened.
pub(super) struct TcpOpener<'a> {
    /// Sockets of a service manager, which the workers share.
    pub(super) inherited: &'a HashMap<SocketAddr, InheritedSocket>,
    /// Whether no other process accepts from these.
    pub(super) owns_backlogs: bool,
    pub(super) previous: PreviousSockets,
}

impl TcpOpener<'_> {
    /// Gives each socket the id of its address.
    pub(super) fn make_listeners(
        &self,
        sockets: Vec<net::TcpListener>,
        wanted: &[ListenAddr],
    ) -> Vec<Listener> {
        sockets
            .into_iter()
            .zip(wanted)
            .map(|(socket, wanted)| self.make_listener(socket, wanted))
            .collect()
    }

    /// Takes the previous process's sockets that are left over.
    pub(super) fn take_surplus(&mut self, wanted: &[ListenAddr]) -> Vec<Listener> {
        let mut surplus = Vec::new();
        for wanted in wanted {
            for socket in self.previous.take_rest(wanted.1) {
                surplus.push(self.make_listener(socket, wanted));
            }
        }
        surplus
    }

    fn make_listener(&self, socket: net::TcpListener, &(id, addr): &ListenAddr) -> Listener {
        Listener {
            id,
            addr: LocalAddr(socket.local_addr().unwrap_or(addr)),
            socket: Arc::new(socket),
            is_shared: self.is_inherited(addr) && !self.owns_backlogs,
            is_transparent: false,
        }
    }
}

impl SocketOpener for TcpOpener<'_> {
    type Socket = net::TcpListener;
    const TRANSPORT: Transport = Transport::Tcp;

    fn check_free(&self, addr: SocketAddr) -> peername_sys::Result<()> {
        if self.is_inherited(addr) || self.previous.has(addr) {
            return Ok(());
        }
        listener::check_address_free(addr)
    }

    fn is_inherited(&self, addr: SocketAddr) -> bool {
        self.inherited.contains_key(&addr)
    }

    fn open(
        &mut self,
        addr: SocketAddr,
        options: BindOptions,
    ) -> peername_sys::Result<net::TcpListener> {
        let socket = if let Some(inherited) = self.inherited.get(&addr) {
            inherited.try_clone()?.into()
        } else if let Some(previous) = self.previous.next(addr) {
            // Its options stay as they are: the previous process may go on.
            return Ok(previous);
        } else {
            listener::bind(addr, options)?
        };
        // Accepted sockets inherit these options, which saves five system calls per connection.
        stream::tune_for_peer(&socket, addr.ip())?;
        Ok(socket)
    }

    fn local_addr(socket: &net::TcpListener) -> io::Result<SocketAddr> {
        socket.local_addr()
    }
}

/// The previous process's sockets on the wanted addresses.
pub(super) struct PreviousSockets(Vec<PreviousAddress>);

struct PreviousAddress {
    requested: SocketAddr,
    /// Has the port that the kernel chose where the requested port is 0.
    bound_to: SocketAddr,
    sockets: VecDeque<net::TcpListener>,
}

impl PreviousSockets {
    pub(super) fn take(
        wanted: &[ListenAddr],
        previous: &mut HashMap<SocketAddr, Vec<net::TcpListener>>,
    ) -> Self {
        let mut taken = Vec::new();
        for &(_, requested) in wanted {
            let Some(sockets) = previous.remove(&requested) else {
                continue;
            };
            let bound_to = sockets.first().and_then(|first| first.local_addr().ok());
            taken.push(PreviousAddress {
                requested,
                bound_to: bound_to.unwrap_or(requested),
                sockets: sockets.into(),
            });
        }
        Self(taken)
    }

    fn has(&self, requested: SocketAddr) -> bool {
        self.0.iter().any(|address| address.requested == requested)
    }

    /// Takes the next socket by its address, either the requested address or the one that it is bound to.
    fn next(&mut self, addr: SocketAddr) -> Option<net::TcpListener> {
        self.0
            .iter_mut()
            .find(|address| address.requested == addr || address.bound_to == addr)?
            .sockets
            .pop_front()
    }

    /// Takes the sockets on a requested address that are left.
    fn take_rest(&mut self, requested: SocketAddr) -> VecDeque<net::TcpListener> {
        self.0
            .iter_mut()
            .find(|address| address.requested == requested)
            .map(|address| std::mem::take(&mut address.sockets))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listeners::ListenerId;

    /// A previous process may have a socket on an address that a service manager passes, too.
    #[test]
    fn inherited_address_leaves_the_previous_socket_as_surplus() {
        let passed = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let previous = passed.try_clone().unwrap();
        let passed = InheritedSocket::new(passed.into(), "3".to_owned()).unwrap();
        let addr = passed.addr;
        let wanted = [(ListenerId(0), addr)];
        let mut opener = TcpOpener {
            inherited: &HashMap::from([(addr, passed)]),
            owns_backlogs: false,
            previous: PreviousSockets::take(&wanted, &mut HashMap::from([(addr, vec![previous])])),
        };
        let options = BindOptions {
            reuse_port: true,
            v6_only: false,
        };
        opener.open(addr, options).unwrap();
        assert_eq!(opener.take_surplus(&wanted).len(), 1);
    }
}
