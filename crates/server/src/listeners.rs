//! Opens the listening sockets of all workers, before anything is served.
//!
//! Each worker has a socket of its own on every address (SO_REUSEPORT); an inherited socket is shared by all workers.
//! After an upgrade, workers have the sockets of the previous process's workers.

mod bind_error;
mod per_worker;
mod tcp_opener;
mod worker_listener;

use std::collections::HashMap;
use std::net::{self, SocketAddr};

use peername_sys::Transport;
use peername_sys::ipc::inherited_socket::InheritedSocket;
use peername_sys::socket::transparent;
use peername_sys::socket::{BindOptions, is_ipv6_only};
use peername_sys::tcp::listener;
use peername_sys::tcp::stream;

pub use bind_error::BindError;
use per_worker::check_unbound;
pub use per_worker::{ExistingListeners, OpenRequest, SocketOpener, covers, open_per_worker};
use tcp_opener::{PreviousSockets, TcpOpener};
pub(crate) use worker_listener::Listener;
pub use worker_listener::{ListenAddr, ListenerId};

/// Listening sockets that another process has opened, by address.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    /// Stream sockets of a service manager (socket activation).
    pub tcp: HashMap<SocketAddr, InheritedSocket>,
    /// Whether no other process accepts from the sockets of `tcp`. A drain then serves their accept backlogs. It leaves the
    /// backlogs of a service manager's sockets to the next process.
    pub owns_backlogs: bool,
    /// Datagram sockets of a service manager.
    pub udp: HashMap<SocketAddr, InheritedSocket>,
    /// Stream sockets of the process that this one replaces, one for each of its workers, by the requested address.
    /// [`Listeners::open`] takes those that it needs; dropping a socket leaves it to that process.
    pub previous_tcp: HashMap<SocketAddr, Vec<net::TcpListener>>,
    /// Datagram sockets of that process, likewise.
    pub previous_udp: HashMap<SocketAddr, Vec<net::UdpSocket>>,
}

/// Two sockets of a service manager have this address, such as one for each of two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("two sockets of the service manager have the address {0}: give each an address of its own")]
pub struct SameAddress(SocketAddr);

impl InheritedSockets {
    /// Indexes the sockets by protocol and address.
    ///
    /// # Errors
    ///
    /// Two have the same address. One would not be served, and its clients would wait for ever.
    pub fn new(sockets: Vec<InheritedSocket>) -> Result<Self, SameAddress> {
        let mut indexed = Self::default();
        for socket in sockets {
            let addr = socket.addr;
            let by_addr = if socket.is_stream {
                &mut indexed.tcp
            } else {
                &mut indexed.udp
            };
            if by_addr.insert(addr, socket).is_some() {
                return Err(SameAddress(addr));
            }
        }
        Ok(indexed)
    }

    /// The number of sockets of the previous process.
    pub fn previous_count(&self) -> usize {
        let tcp = self.previous_tcp.values().map(Vec::len);
        tcp.chain(self.previous_udp.values().map(Vec::len)).sum()
    }

    /// Finds a socket that is for none of these addresses.
    pub fn find_unwanted(
        &self,
        tcp: &[SocketAddr],
        udp: &[SocketAddr],
    ) -> Option<&InheritedSocket> {
        self.tcp.values().chain(self.udp.values()).find(|socket| {
            let wanted = if socket.is_stream { tcp } else { udp };
            !wanted.contains(&socket.addr)
        })
    }
}

/// Open TCP sockets: one per worker and address. Nothing accepts from them yet, and those that this process has opened get
/// clients only after [`Listeners::listen`].
#[derive(Debug)]
pub struct Listeners {
    pub(crate) per_worker: Vec<Vec<Listener>>,
    /// Sockets of a previous process that had more workers. Closing a socket would reset connections that are just being
    /// established, so the workers serve these sockets, too.
    surplus: Vec<Listener>,
    /// The new addresses that overlap none on which this process or the previous one listens.
    new: Vec<SocketAddr>,
    /// The new addresses that overlap one of those.
    beside_own: Vec<SocketAddr>,
}

impl Listeners {
    /// Binds a socket to each address for each of `workers`, so that an address that can't be listened on is known
    /// before anything is served. An inherited socket is shared by all workers.
    pub fn open(
        wanted: &[ListenAddr],
        existing: &ExistingListeners,
        workers: usize,
        inherited: &mut InheritedSockets,
    ) -> Result<Self, BindError> {
        let mut existing = existing.clone();
        // Sockets of the previous process are no conflict either, whether they are taken or not wanted any more.
        existing.open.extend(inherited.previous_tcp.keys());
        let previous = PreviousSockets::take(wanted, &mut inherited.previous_tcp);
        let mut opener = TcpOpener {
            inherited: &inherited.tcp,
            owns_backlogs: inherited.owns_backlogs,
            previous,
        };
        let request = OpenRequest {
            listen: wanted.iter().map(|&(_, addr)| addr).collect(),
            existing: &existing,
            workers,
        };
        let per_worker: Vec<Vec<_>> = open_per_worker(&request, &mut opener)?
            .into_iter()
            .map(|sockets| opener.make_listeners(sockets, wanted))
            .collect();
        let surplus = opener.take_surplus(wanted);
        let is_new = |addr: &SocketAddr| {
            addr.port() != 0 && !existing.open.contains(addr) && !opener.is_inherited(*addr)
        };
        let (beside_own, new) = request
            .listen
            .into_iter()
            .filter(is_new)
            .partition(|&addr| existing.overlaps(addr));
        Ok(Self {
            per_worker,
            surplus,
            new,
            beside_own,
        })
    }

    /// Makes the sockets listen. To be called when nothing else can fail: beside a listener of this process or of the previous
    /// one, whose clients they share, a socket would take clients that are reset if it is closed before it is served.
    ///
    /// # Errors
    ///
    /// The address that another program has begun to listen on meanwhile.
    pub fn listen(&self) -> Result<(), BindError> {
        // With SO_REUSEPORT listen(2) succeeds beside a program that has begun to listen since the sockets were bound.
        for &addr in &self.beside_own {
            check_unbound(Transport::Tcp, addr).map_err(|failed| BindError::new(addr, failed))?;
        }
        for &addr in &self.new {
            // Other errors than EADDRINUSE say nothing: a privileged port can't be bound any more, if the privilege is dropped.
            let checked =
                listener::check_address_free(addr).map_err(|failed| BindError::new(addr, failed));
            if let Err(error) = checked
                && error.is_in_use()
            {
                return Err(error);
            }
        }
        for listener in self.per_worker.iter().flatten() {
            listener::start_listening(&listener.socket)
                .map_err(|failed| BindError::new(listener.addr.0, failed))?;
        }
        Ok(())
    }

    /// Sets IP_TRANSPARENT on the sockets that `is_wanted` selects, so that they accept connections that a TPROXY rule
    /// redirects. [`Incoming::local`](crate::workers::Incoming::local) is then the original destination. The option is not set
    /// again on sockets that have it, such as those of the previous process.
    ///
    /// # Errors
    ///
    /// The address, where IP_TRANSPARENT is not permitted.
    pub fn with_transparent(
        mut self,
        is_wanted: impl Fn(ListenerId) -> bool,
    ) -> Result<Self, BindError> {
        let listeners = self
            .per_worker
            .iter_mut()
            .flatten()
            .chain(&mut self.surplus);
        for listener in listeners.filter(|listener| is_wanted(listener.id)) {
            let addr = listener.addr.0;
            listener.is_transparent = true;
            let with_addr = |failed| BindError::from_transparency(addr, failed);
            if !transparent::is_transparent(&listener.socket).unwrap_or(false) {
                transparent::set_transparent(&listener.socket, addr.is_ipv6())
                    .map_err(with_addr)?;
            }
            // Connections that the rule redirects come over a network.
            if addr.ip().is_loopback() {
                stream::tune_for_network(&listener.socket).map_err(with_addr)?;
            }
        }
        Ok(self)
    }

    /// The addresses listened on.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.first_worker_listeners()
            .map(|listener| listener.addr.0)
            .collect()
    }

    /// Whether each of these addresses leaves IPv4 to others (IPV6_V6ONLY).
    pub fn ipv6_only(&self) -> Vec<bool> {
        self.first_worker_listeners()
            .map(|listener| is_ipv6_only(&listener.socket))
            .collect()
    }

    fn first_worker_listeners(&self) -> impl Iterator<Item = &Listener> {
        self.per_worker.first().into_iter().flatten()
    }

    /// The sockets of each worker, among which the surplus ones are distributed.
    pub(crate) fn into_per_worker(self) -> Vec<Vec<Listener>> {
        let mut per_worker = self.per_worker;
        let workers = per_worker.len();
        for (number, listener) in self.surplus.into_iter().enumerate() {
            // There is a worker wherever there is a socket.
            if let Some(worker) = per_worker.get_mut(number % workers.max(1)) {
                worker.push(listener);
            }
        }
        per_worker
    }
}

/// Opens one TCP socket for a listener that no worker serves, such as the admin endpoint.
pub fn open_single(addr: SocketAddr) -> Result<net::TcpListener, BindError> {
    listener::check_address_free(addr)
        .and_then(|()| listener::listen(addr, BindOptions::default()))
        .map_err(|failed| BindError::new(addr, failed))
}
