//! Listening UDP sockets, of all workers, before anything is served.

use std::net::{SocketAddr, UdpSocket};

use peername_sys::socket::BindOptions;
use peername_sys::socket::transparent;
use peername_sys::udp;
use peername_sys::{NameCall, SyscallError};

use super::dialect::Dialect;
use peername_server::addr::LocalAddr;
use peername_server::listeners::ListenerId;
use peername_server::listeners::{
    BindError, ExistingListeners, InheritedSockets, ListenAddr, OpenRequest, open_per_worker,
};

/// Of each worker, its sockets, in the order of the listeners.
#[derive(Debug)]
pub struct UdpListeners {
    pub(super) listeners: Vec<(ListenerId, LocalAddr)>,
    pub(super) by_worker: Vec<Vec<UdpSocket>>,
}

impl UdpListeners {
    /// Opens every socket of every worker and steers clients among them, so that a client always
    /// comes to the same worker: its address and port can have one socket only.
    ///
    /// Without an address there are none. `dialect` says where the client is found; `None` means
    /// that the sender is the client. With [`Dialect::First`] most datagrams do not name their client,
    /// so one worker serves them all; and so it does when one of the sockets is `given`, because datagrams
    /// can't be steered among those who share a socket.
    ///
    /// # Errors
    ///
    /// The address that failed, with what to do about it.
    pub fn open(
        wanted: &[ListenAddr],
        beside: &ExistingListeners,
        workers: usize,
        dialect: Option<Dialect>,
        given: &InheritedSockets,
    ) -> Result<Self, BindError> {
        if wanted.is_empty() {
            return Ok(Self {
                listeners: Vec::new(),
                by_worker: Vec::new(),
            });
        }
        let is_given = |(_, addr): &ListenAddr| given.udp.contains_key(addr);
        let workers = match dialect {
            _ if wanted.iter().any(is_given) => 1,
            Some(dialect) if !dialect.is_self_contained() => 1,
            Some(_) | None => workers.max(1),
        };
        let open = |addr, sharing: BindOptions| {
            let socket = match given.udp.get(&addr) {
                Some(given) => udp::adopt(given.try_clone()?, addr)?,
                None => udp::listen(addr, sharing)?,
            };
            udp::set_buffer_sizes(&socket, BUFFER)?;
            // A merged datagram is steered by its first part alone, and the others may be of clients
            // that belong to another worker.
            if workers == 1 {
                let _ = udp::enable_gro(&socket);
            }
            Ok(socket)
        };
        let addr = UdpSocket::local_addr;
        let plan = OpenRequest {
            listen: wanted.iter().map(|&(_, addr)| addr).collect(),
            existing: beside,
            workers,
        };
        let is_free = |addr| match given.udp.contains_key(&addr) {
            true => Ok(()),
            false => udp::check_address_free(addr),
        };
        let by_worker = open_per_worker(&plan, is_free, open, addr)?;
        let first = by_worker.first().into_iter().flatten();
        let chosen: Vec<_> = first.filter_map(|s| s.local_addr().ok()).collect();
        let groups = by_worker.first().into_iter().flatten().zip(&chosen);
        for (socket, &addr) in groups {
            steer(socket, workers, dialect).map_err(|failed| BindError::new(addr, failed))?;
        }
        // A client whose first datagram came to one worker before the others were there, and whose
        // second came to another, would have two sessions.
        let all = by_worker
            .iter()
            .flat_map(|sockets| sockets.iter().zip(&chosen));
        for (socket, &addr) in all.filter(|(_, addr)| !given.udp.contains_key(addr)) {
            udp::start_receiving(socket).map_err(|failed| BindError::new(addr, failed))?;
        }
        let listeners = wanted.iter().zip(chosen);
        let listeners = listeners.map(|(&(id, _), addr)| (id, LocalAddr(addr)));
        Ok(Self {
            listeners: listeners.collect(),
            by_worker,
        })
    }

    /// Lets them take what a TPROXY rule gives them, and answer from where that was sent to. Open them
    /// for one worker: the kernel chooses among sockets by the sender's port then, so that a client
    /// would come to several.
    ///
    /// # Errors
    ///
    /// The address, where IP_TRANSPARENT is not permitted.
    pub fn transparent(self) -> Result<Self, BindError> {
        let addrs = self.addrs();
        let named = self
            .by_worker
            .iter()
            .flat_map(|sockets| sockets.iter().zip(&addrs));
        for (socket, &addr) in named {
            let set = transparent::set_transparent(socket, addr.is_ipv6())
                .and_then(|()| transparent::receive_original_destination(socket, addr.is_ipv6()));
            set.map_err(|failed| BindError::new(addr, failed))?;
        }
        Ok(self)
    }

    /// The addresses listened on.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|(_, addr)| addr.0).collect()
    }

    /// Says what of the kernel would make it faster or lose less, if it has not got it. To be called once
    /// the log is there.
    pub fn tell_of_shortcomings(&self) {
        let Some(socket) = self.by_worker.first().and_then(|sockets| sockets.first()) else {
            return;
        };
        if !udp::supports_gso() {
            tracing::info!(
                "this kernel has no UDP_SEGMENT (Linux 4.18): each datagram goes out alone"
            );
        }
        if let Ok(got) = udp::receive_buffer_size(socket)
            && got < BUFFER
        {
            tracing::info!(
                "the receive buffer of a UDP listener holds {got} octets instead of {BUFFER}, so that \
                 a burst may be lost (receive_buffer_full); raise net.core.rmem_max"
            );
        }
    }

    /// How many workers have sockets.
    pub fn workers(&self) -> usize {
        self.by_worker.len()
    }
}

fn steer(socket: &UdpSocket, workers: usize, dialect: Option<Dialect>) -> Result<(), SyscallError> {
    let workers = u32::try_from(workers)
        .map_err(std::io::Error::other)
        .call("so many workers")?;
    match dialect {
        _ if workers == 1 => Ok(()),
        Some(dialect) => dialect.steer(socket, workers),
        None => Ok(()),
    }
}

/// A worker that is busy with something else for 10 ms must not lose what comes meanwhile: 100 000
/// small datagrams a second take about 0.8 KiB of buffer each.
const BUFFER: usize = 4 << 20;
