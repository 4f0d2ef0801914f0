//! Opens TCP sockets, and takes those of a previous process.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{self, SocketAddr};

use peername_sys::ipc::listen_fds::InheritedSocket;
use peername_sys::socket::BindOptions;
use peername_sys::tcp::{listener, stream};

use super::per_worker::SocketOpener;
use super::worker_listener::{ListenAddr, Listener};
use crate::addr::LocalAddr;

/// Opens TCP sockets, or takes those that other processes have opened.
pub(super) struct TcpOpener<'a> {
    /// By a service manager: the workers share them.
    pub(super) inherited: &'a HashMap<SocketAddr, InheritedSocket>,
    pub(super) previous: PreviousSockets,
}

impl TcpOpener<'_> {
    pub(super) fn name_listeners(
        &self,
        sockets: Vec<net::TcpListener>,
        wanted: &[ListenAddr],
    ) -> Vec<Listener> {
        sockets
            .into_iter()
            .zip(wanted)
            .map(|(socket, wanted)| self.listener(socket, wanted))
            .collect()
    }

    /// The previous process's sockets that no worker has.
    pub(super) fn take_surplus(&mut self, wanted: &[ListenAddr]) -> Vec<Listener> {
        let mut surplus = Vec::new();
        for wanted in wanted {
            for socket in self.previous.take_rest(wanted.1) {
                surplus.push(self.listener(socket, wanted));
            }
        }
        surplus
    }

    fn listener(&self, socket: net::TcpListener, &(id, addr): &ListenAddr) -> Listener {
        Listener {
            id,
            addr: LocalAddr(socket.local_addr().unwrap_or(addr)),
            socket,
            is_shared: self.inherited.contains_key(&addr),
            is_transparent: false,
        }
    }
}

impl SocketOpener for TcpOpener<'_> {
    type Socket = net::TcpListener;

    fn check_free(&self, addr: SocketAddr) -> peername_sys::Result<()> {
        if self.is_given(addr) || self.previous.has(addr) {
            return Ok(());
        }
        listener::check_address_free(addr)
    }

    fn is_given(&self, addr: SocketAddr) -> bool {
        self.inherited.contains_key(&addr)
    }

    fn open(
        &mut self,
        addr: SocketAddr,
        options: BindOptions,
    ) -> peername_sys::Result<net::TcpListener> {
        let socket = match (self.inherited.get(&addr), self.previous.next(addr)) {
            (Some(inherited), _) => inherited.try_clone()?.into(),
            (None, Some(previous)) => previous,
            (None, None) => listener::listen(addr, options)?,
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
    /// Differs where the requested port is 0.
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
        self.0.iter().any(|one| one.requested == requested)
    }

    /// The next socket on an address: the requested one, or the one that the sockets are bound to.
    fn next(&mut self, addr: SocketAddr) -> Option<net::TcpListener> {
        self.0
            .iter_mut()
            .find(|one| one.requested == addr || one.bound_to == addr)?
            .sockets
            .pop_front()
    }

    /// The sockets on a requested address that are left.
    fn take_rest(&mut self, requested: SocketAddr) -> VecDeque<net::TcpListener> {
        self.0
            .iter_mut()
            .find(|one| one.requested == requested)
            .map(|one| std::mem::take(&mut one.sockets))
            .unwrap_or_default()
    }
}
