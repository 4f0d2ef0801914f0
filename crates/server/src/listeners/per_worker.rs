//! Opens a socket on each address for each worker.

use std::collections::HashSet;
use std::io;
use std::iter;
use std::net::SocketAddr;

use peername_sys::netlink::SocketLookup;
use peername_sys::socket::BindOptions;
use peername_sys::{Errno, NameCall, Transport};

use super::bind_error::BindError;

/// Listeners of this process with the same protocol.
#[derive(Clone, Debug, Default)]
pub struct ExistingListeners {
    /// Those that are open, also those that are about to be closed.
    pub open: Vec<SocketAddr>,
    /// All that the configuration has, open or not.
    pub configured: Vec<SocketAddr>,
}

impl ExistingListeners {
    pub(super) fn overlaps(&self, addr: SocketAddr) -> bool {
        self.open.iter().any(|&other| overlap(addr, other))
    }
}

/// The request for [`open_per_worker`].
pub struct OpenRequest<'a> {
    /// The addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// The further listeners of this process.
    pub existing: &'a ExistingListeners,
    /// The number of workers, each of which gets a socket on each address.
    pub workers: usize,
}

/// Opens the sockets of one protocol.
pub trait SocketOpener {
    /// A bound socket.
    type Socket;

    /// The protocol.
    const TRANSPORT: Transport;

    /// Checks that no other program listens on the address.
    ///
    /// # Errors
    ///
    /// EADDRINUSE if another program does.
    fn check_free(&self, addr: SocketAddr) -> peername_sys::Result<()>;

    /// Whether a service manager has passed a socket on this address.
    fn is_inherited(&self, addr: SocketAddr) -> bool;

    /// Opens a socket on the address, or takes one that another process has opened.
    fn open(
        &mut self,
        addr: SocketAddr,
        options: BindOptions,
    ) -> peername_sys::Result<Self::Socket>;

    /// The address that the socket is bound to.
    fn local_addr(socket: &Self::Socket) -> io::Result<SocketAddr>;
}

/// Opens every address for each worker. With port 0 the kernel chooses a port for the first worker, and the others use the
/// same port. The error is that of the first address that failed.
pub fn open_per_worker<O: SocketOpener>(
    request: &OpenRequest<'_>,
    opener: &mut O,
) -> Result<Vec<Vec<O::Socket>>, BindError> {
    for &addr in &request.listen {
        // With SO_REUSEPORT a second proxy would get some of the first one's clients. An overlapping listener of this
        // process is allowed: of 127.0.0.1 and 0.0.0.0, the kernel prefers the more specific one as long as it is open.
        let result = if request.existing.overlaps(addr) {
            check_beside_own(addr, request.existing, opener)
        } else {
            opener.check_free(addr)
        };
        result.map_err(|failed| BindError::new(addr, failed))?;
    }
    let configured = &request.existing.configured;
    let first = open_all(&request.listen, configured, opener)?;
    let mut bound = Vec::new();
    for (socket, &addr) in first.iter().zip(&request.listen) {
        let local_addr = O::local_addr(socket)
            .call("getsockname(2)")
            .map_err(|failed| BindError::new(addr, failed))?;
        bound.push(local_addr);
    }
    iter::once(Ok(first))
        .chain((1..request.workers).map(|_| open_all(&bound, configured, opener)))
        .collect()
}

/// Checks that no other program has the address, beside an overlapping listener of this process.
fn check_beside_own<O: SocketOpener>(
    addr: SocketAddr,
    existing: &ExistingListeners,
    opener: &O,
) -> peername_sys::Result<()> {
    if existing.open.contains(&addr) || opener.is_inherited(addr) {
        return Ok(());
    }
    check_unbound(O::TRANSPORT, addr)
}

/// Checks that no socket listens on exactly this address: an overlapping listener would fail the usual check, which binds a
/// socket. Where the kernel or a sandbox permits no lookup, there is no check.
pub(super) fn check_unbound(transport: Transport, addr: SocketAddr) -> peername_sys::Result<()> {
    let found = SocketLookup::open().and_then(|lookup| lookup.is_bound(transport, addr));
    if found.unwrap_or(false) {
        return Err(io::Error::from(Errno::ADDRINUSE)).call("bind(2)");
    }
    Ok(())
}

/// Opens a socket on each address. `configured` are all addresses that this process is to listen on.
fn open_all<O: SocketOpener>(
    addrs: &[SocketAddr],
    configured: &[SocketAddr],
    opener: &mut O,
) -> Result<Vec<O::Socket>, BindError> {
    // Ports on which `[::]` leaves IPv4 to other listeners. Otherwise it would accept IPv4 at addresses that are not listed, or
    // conflict with an inherited socket without SO_REUSEPORT. A `0.0.0.0` that this process opens does not count: the kernel
    // prefers it, and a reload may close it.
    let v4_ports: HashSet<_> = addrs
        .iter()
        .chain(configured)
        .filter(|addr| addr.is_ipv4())
        .filter(|addr| !addr.ip().is_unspecified() || opener.is_inherited(**addr))
        .map(SocketAddr::port)
        .collect();
    let mut sockets = Vec::new();
    for &addr in addrs {
        let options = BindOptions {
            // Even with one worker: a reload may replace this socket by one on another address.
            reuse_port: true,
            v6_only: v4_ports.contains(&addr.port()),
        };
        let socket = opener
            .open(addr, options)
            .map_err(|failed| BindError::new(addr, failed))?;
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Whether a socket on one address conflicts with one on the other.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    covers(one, other) || covers(other, one)
}

/// Whether a socket on `wide` receives what is sent to `narrow` while no socket is bound to `narrow`.
/// `[::]` may accept IPv4, too.
pub fn covers(wide: SocketAddr, narrow: SocketAddr) -> bool {
    let is_wider = wide.ip().is_unspecified() && (wide.is_ipv6() || narrow.is_ipv4());
    wide.port() == narrow.port() && (wide.ip() == narrow.ip() || is_wider)
}
