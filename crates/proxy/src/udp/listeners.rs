//! The listening UDP sockets of all workers, before they serve.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};

use peername_sys::ipc::inherited_socket::InheritedSocket;
use peername_sys::socket::transparent;
use peername_sys::socket::{BindOptions, is_ipv6_only};
use peername_sys::udp;
use peername_sys::{SyscallError, Transport};

use super::dialect::Dialect;
use super::handover::ReceivedState;
use peername_server::addr::LocalAddr;
use peername_server::listeners::{
    BindError, ExistingListeners, InheritedSockets, ListenAddr, ListenerId, OpenRequest,
    SocketOpener, open_per_worker,
};

/// The listening sockets of each worker, in the order of the listeners.
#[derive(Debug, Default)]
pub struct UdpListeners {
    pub(super) listeners: Vec<(ListenerId, LocalAddr)>,
    pub(super) by_worker: Vec<Vec<UdpSocket>>,
    /// The state of each worker of a previous process.
    pub(super) restored: Vec<Vec<ReceivedState>>,
}

/// An error of [`UdpListeners::restore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The kernel has not passed a descriptor, for want of a free number.
    #[error("a UDP session came without its socket: raise LimitNOFILE")]
    MissingSocket,
    /// The state names a worker or a listener that does not exist.
    #[error("UDP sessions of an unknown worker or listener")]
    UnknownIndex,
}

impl UdpListeners {
    /// Opens every socket of every worker and steers datagrams among the workers by client. A client's datagrams must always
    /// reach the same worker, because its address and port can have only one upstream socket. A `dialect` of `None` means that
    /// the sender is the client. Without an address there are no sockets.
    ///
    /// One worker serves all where most datagrams do not name their client ([`Dialect::First`]), and where one of the sockets
    /// is inherited: datagrams can't be steered among workers that share a socket. Sockets of a previous process are taken as
    /// they are, with its number of workers: another number would steer clients to workers that do not have their sessions.
    pub fn open(
        wanted: &[ListenAddr],
        existing: &ExistingListeners,
        workers: usize,
        dialect: Option<Dialect>,
        inherited: &mut InheritedSockets,
    ) -> Result<Self, BindError> {
        if wanted.is_empty() {
            return Ok(Self::default());
        }
        if let Some(previous) = Self::take_previous(wanted, inherited) {
            return Ok(previous);
        }
        let inherited = &inherited.udp;
        let is_single_worker = wanted.iter().any(|(_, addr)| inherited.contains_key(addr))
            || dialect.is_some_and(|dialect| !dialect.has_header_on_each());
        let workers = if is_single_worker { 1 } else { workers.max(1) };
        let request = OpenRequest {
            listen: wanted.iter().map(|&(_, addr)| addr).collect(),
            existing,
            workers,
        };
        let mut opener = UdpOpener { inherited, workers };
        let by_worker = open_per_worker(&request, &mut opener)?;
        let first_worker = by_worker.first().map(Vec::as_slice).unwrap_or_default();
        let addrs: Vec<_> = first_worker
            .iter()
            .filter_map(|socket| socket.local_addr().ok())
            .collect();
        for (socket, &addr) in first_worker.iter().zip(&addrs) {
            steer(socket, workers, dialect).map_err(|error| BindError::new(addr, error))?;
        }
        // Sockets receive only now that all are bound: a client would have two sessions if its first datagram reached one
        // worker before the others' sockets were bound, and its second reached another.
        for sockets in &by_worker {
            for (socket, &addr) in sockets.iter().zip(&addrs) {
                if !inherited.contains_key(&addr) {
                    udp::start_receiving(socket).map_err(|error| BindError::new(addr, error))?;
                }
            }
        }
        let listeners = wanted
            .iter()
            .zip(addrs)
            .map(|(&(id, _), addr)| (id, LocalAddr(addr)))
            .collect();
        Ok(Self {
            listeners,
            by_worker,
            restored: Vec::new(),
        })
    }

    /// Takes the sockets of a previous process. `None` if it did not have a socket for each of the addresses and workers.
    fn take_previous(wanted: &[ListenAddr], inherited: &mut InheritedSockets) -> Option<Self> {
        let previous = &mut inherited.previous_udp;
        let workers = previous.get(&wanted.first()?.1)?.len();
        let has_all = wanted.iter().all(|(_, addr)| {
            previous
                .get(addr)
                .is_some_and(|sockets| sockets.len() == workers)
        });
        if workers == 0 || !has_all {
            return None;
        }
        let mut listeners = Vec::new();
        let mut by_worker: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
        for &(id, addr) in wanted {
            let sockets = previous.remove(&addr)?;
            let bound_to = sockets.first().and_then(|socket| socket.local_addr().ok());
            listeners.push((id, LocalAddr(bound_to.unwrap_or(addr))));
            for (worker, socket) in by_worker.iter_mut().zip(sockets) {
                worker.push(socket);
            }
        }
        Some(Self {
            listeners,
            by_worker,
            restored: Vec::new(),
        })
    }

    /// Adds the state of a worker of a previous process. `new_index` has the new index of each of that process's listeners.
    pub fn restore(
        &mut self,
        worker: usize,
        (mut state, sockets): ReceivedState,
        new_index: &[usize],
    ) -> Result<(), RestoreError> {
        match sockets.len().cmp(&state.sessions.len()) {
            Ordering::Less => return Err(RestoreError::MissingSocket),
            Ordering::Greater => return Err(RestoreError::UnknownIndex),
            Ordering::Equal => {}
        }
        self.restored.resize_with(self.by_worker.len(), Vec::new);
        let restored = self.restored.get_mut(worker);
        let restored = restored.ok_or(RestoreError::UnknownIndex)?;
        state
            .renumber(new_index)
            .ok_or(RestoreError::UnknownIndex)?;
        restored.push((state, sockets));
        Ok(())
    }

    /// Sets IP_TRANSPARENT on the sockets, so that they receive datagrams that a TPROXY rule redirects, with their original
    /// destination. The sockets must be opened for one worker: among several, the kernel would choose by the sender's port, and
    /// a client's datagrams would reach several workers.
    pub fn into_transparent(self) -> Result<Self, BindError> {
        let addrs = self.addrs();
        for sockets in &self.by_worker {
            for (socket, &addr) in sockets.iter().zip(&addrs) {
                transparent::set_transparent(socket, addr.is_ipv6())
                    .and_then(|()| {
                        transparent::receive_original_destination(socket, addr.is_ipv6())
                    })
                    .map_err(|error| BindError::from_transparency(addr, error))?;
            }
        }
        Ok(self)
    }

    /// The addresses of the listeners.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|(_, addr)| addr.0).collect()
    }

    /// Whether each of these addresses leaves IPv4 to others (IPV6_V6ONLY).
    pub fn ipv6_only(&self) -> Vec<bool> {
        self.by_worker
            .first()
            .into_iter()
            .flatten()
            .map(is_ipv6_only)
            .collect()
    }

    /// Logs which kernel features for speed are missing, and a receive buffer that is too small. To be called once the
    /// log is set up.
    pub fn log_kernel_limits(&self) {
        let Some(socket) = self.by_worker.first().and_then(|sockets| sockets.first()) else {
            return;
        };
        if !udp::supports_gso() {
            tracing::info!(
                "this kernel has no UDP_SEGMENT (Linux 4.18): datagrams are sent one by one"
            );
        }
        // The kernel reports twice what was requested (socket(7), SO_RCVBUF).
        if let Ok(got) = udp::receive_buffer_size(socket).map(|bytes| bytes / 2)
            && got < BUFFER_BYTES
        {
            tracing::info!(
                "the receive buffer of a UDP listener holds {got} bytes instead of {BUFFER_BYTES}, so that \
                 a burst may be lost (receive_buffer_full); raise net.core.rmem_max"
            );
        }
    }

    /// The number of workers that have sockets.
    pub fn workers(&self) -> usize {
        self.by_worker.len()
    }
}

/// Opens UDP sockets, or takes those that a service manager has passed.
struct UdpOpener<'a> {
    inherited: &'a HashMap<SocketAddr, InheritedSocket>,
    workers: usize,
}

impl SocketOpener for UdpOpener<'_> {
    type Socket = UdpSocket;
    const TRANSPORT: Transport = Transport::Udp;

    fn check_free(&self, addr: SocketAddr) -> peername_sys::Result<()> {
        if self.is_inherited(addr) {
            return Ok(());
        }
        udp::check_address_free(addr)
    }

    fn is_inherited(&self, addr: SocketAddr) -> bool {
        self.inherited.contains_key(&addr)
    }

    fn open(&mut self, addr: SocketAddr, options: BindOptions) -> peername_sys::Result<UdpSocket> {
        let socket = match self.inherited.get(&addr) {
            Some(inherited) => udp::adopt(inherited.try_clone()?, addr)?,
            None => udp::listen(addr, options)?,
        };
        udp::set_buffer_sizes(&socket, BUFFER_BYTES)?;
        // With several workers, a merged datagram (UDP_GRO) would be steered by its first part alone, and the other parts may
        // belong to clients of another worker.
        if self.workers == 1 {
            let _ = udp::enable_gro(&socket);
        }
        Ok(socket)
    }

    fn local_addr(socket: &UdpSocket) -> io::Result<SocketAddr> {
        socket.local_addr()
    }
}

fn steer(socket: &UdpSocket, workers: usize, dialect: Option<Dialect>) -> Result<(), SyscallError> {
    let workers = u32::try_from(workers).unwrap_or(u32::MAX);
    match dialect {
        Some(dialect) if workers > 1 => dialect.steer(socket, workers),
        _ => Ok(()),
    }
}

/// Socket buffer size in bytes. No datagram may be lost while a worker is busy with something else for 50 ms, at 100 000 small
/// datagrams a second, which take about 0.8 KiB of buffer each.
const BUFFER_BYTES: usize = 4 << 20;
