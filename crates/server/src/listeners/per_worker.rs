//! Opens a socket on each address for each worker.

use std::collections::HashSet;
use std::io;
use std::iter;
use std::net::{IpAddr, SocketAddr};

use peername_sys::socket::BindOptions;

use super::bind_error::BindError;

/// The request for [`open_per_worker`].
pub struct OpenRequest<'a> {
    /// The addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// What this process listens on already, by the same protocol.
    pub existing: &'a [SocketAddr],
    /// How many workers get a socket on each address.
    pub workers: usize,
}

/// Opens the sockets of one protocol.
pub trait SocketOpener {
    /// A socket that listens.
    type Socket;

    /// Checks that no other program listens there.
    ///
    /// # Errors
    ///
    /// EADDRINUSE if one does.
    fn check_free(&self, addr: SocketAddr) -> peername_sys::Result<()>;

    /// Whether a service manager has opened a socket on this address.
    fn is_given(&self, addr: SocketAddr) -> bool;

    /// Opens a socket on the address, or takes one that another process has opened.
    ///
    /// # Errors
    ///
    /// The system call that failed.
    fn open(
        &mut self,
        addr: SocketAddr,
        options: BindOptions,
    ) -> peername_sys::Result<Self::Socket>;

    /// The address that the socket is bound to.
    ///
    /// # Errors
    ///
    /// ENOBUFS.
    fn local_addr(socket: &Self::Socket) -> io::Result<SocketAddr>;
}

/// Opens every address for each worker. With port 0 the kernel chooses a port for the first worker, and the others use the
/// same port.
///
/// # Errors
///
/// The first address that failed.
pub fn open_per_worker<O: SocketOpener>(
    request: &OpenRequest<'_>,
    opener: &mut O,
) -> Result<Vec<Vec<O::Socket>>, BindError> {
    for &addr in &request.listen {
        // With SO_REUSEPORT a second proxy would get some of the first one's clients. An overlapping listener of this
        // process is allowed: of 127.0.0.1 and 0.0.0.0, the kernel prefers the more specific one as long as it is open.
        let is_own = request.existing.iter().any(|&own| overlap(addr, own));
        if !is_own {
            opener
                .check_free(addr)
                .map_err(|failed| BindError::new(addr, failed))?;
        }
    }
    let first = open_all(&request.listen, opener)?;
    let chosen: Vec<_> = first
        .iter()
        .filter_map(|socket| O::local_addr(socket).ok())
        .collect();
    iter::once(Ok(first))
        .chain((1..request.workers).map(|_| open_all(&chosen, opener)))
        .collect()
}

/// Opens a socket on each address.
fn open_all<O: SocketOpener>(
    addrs: &[SocketAddr],
    opener: &mut O,
) -> Result<Vec<O::Socket>, BindError> {
    let given_v4_ports: HashSet<_> = addrs
        .iter()
        .filter(|addr| addr.is_ipv4() && opener.is_given(**addr))
        .map(SocketAddr::port)
        .collect();
    addrs
        .iter()
        .map(|&addr| {
            let options = BindOptions {
                // Even with one worker: a reload may replace this socket by one on another address.
                reuse_port: true,
                // `[::]` accepts IPv4 also beside `0.0.0.0`, which the kernel prefers, because a reload may close that. A
                // socket of a service manager stays, and may be without SO_REUSEPORT.
                v6_only: given_v4_ports.contains(&addr.port()),
            };
            opener
                .open(addr, options)
                .map_err(|failed| BindError::new(addr, failed))
        })
        .collect()
}

/// Whether a socket on one address conflicts with one on the other.
pub fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    // `[::]` may accept IPv4, too.
    let covers = |wide: IpAddr, narrow: IpAddr| {
        wide.is_unspecified() && (wide.is_ipv6() || narrow.is_ipv4())
    };
    let (a, b) = (one.ip(), other.ip());
    one.port() == other.port() && (a == b || covers(a, b) || covers(b, a))
}
