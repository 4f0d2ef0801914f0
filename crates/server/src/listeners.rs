//! Opens the listening sockets of all workers, before anything is served.
//!
//! Each worker has a socket of its own on every address (SO_REUSEPORT); an inherited socket is shared by all workers.
//! After an upgrade, workers have the sockets of the previous process's workers.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io;
use std::iter;
use std::net::{self, IpAddr, SocketAddr};

use peername_sys::SyscallError;
use peername_sys::ipc::listen_fds::InheritedSocket;
use peername_sys::socket::BindOptions;
use peername_sys::socket::transparent;
use peername_sys::tcp::listener;
use peername_sys::tcp::stream;

use crate::addr::LocalAddr;
use crate::capabilities::Advice;

/// Identifies a listener, in all workers. Never reused within a process: a closed listener may still be draining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// Pairs each address with a listener id, counting from `first`.
pub fn number_listeners(
    first: u32,
    addresses: &[SocketAddr],
) -> impl Iterator<Item = (ListenerId, SocketAddr)> {
    let ids = (first..).map(ListenerId);
    ids.zip(addresses.iter().copied())
}

/// One worker's socket on an address.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) id: ListenerId,
    pub(crate) addr: LocalAddr,
    pub(crate) socket: net::TcpListener,
    /// Whether another process holds the socket too, and serves its accept backlog after us.
    pub(crate) is_shared: bool,
    /// Whether TPROXY rules bring connections to other destinations.
    pub(crate) is_transparent: bool,
}

/// Listening sockets that another process has opened, by address.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    /// Stream sockets of a service manager (socket activation).
    pub tcp: HashMap<SocketAddr, InheritedSocket>,
    /// Datagram sockets of a service manager.
    pub udp: HashMap<SocketAddr, InheritedSocket>,
    /// Stream sockets of the process that this one replaces, one for each of its workers, by the requested address.
    /// [`Listeners::open`] takes those that it needs; dropping a socket leaves it to that process.
    pub previous_tcp: HashMap<SocketAddr, Vec<net::TcpListener>>,
    /// Datagram sockets of the process that this one replaces, likewise.
    pub previous_udp: HashMap<SocketAddr, Vec<net::UdpSocket>>,
}

impl InheritedSockets {
    /// Indexes the sockets by protocol and address.
    pub fn new(all: Vec<InheritedSocket>) -> Self {
        let (tcp, udp) = all.into_iter().partition::<Vec<_>, _>(|one| one.is_stream);
        let by_addr =
            |all: Vec<InheritedSocket>| all.into_iter().map(|one| (one.addr, one)).collect();
        Self {
            tcp: by_addr(tcp),
            udp: by_addr(udp),
            ..Self::default()
        }
    }

    /// Finds a socket that is for none of these addresses.
    pub fn find_unwanted(
        &self,
        tcp: &[SocketAddr],
        udp: &[SocketAddr],
    ) -> Option<&InheritedSocket> {
        let find = |inherited: &HashMap<SocketAddr, _>, wanted: &[SocketAddr]| {
            let mut addrs = inherited.keys().copied();
            addrs.find(|addr| !wanted.contains(addr))
        };
        let tcp = find(&self.tcp, tcp).and_then(|addr| self.tcp.get(&addr));
        tcp.or_else(|| find(&self.udp, udp).and_then(|addr| self.udp.get(&addr)))
    }
}

/// Open TCP sockets: one per worker and address. Nothing accepts from them yet.
#[derive(Debug)]
pub struct Listeners {
    pub(crate) per_worker: Vec<Vec<Listener>>,
    /// Sockets of a previous process that had more workers. To close one would reset connections that are just being
    /// established, so the workers serve them too.
    surplus: Vec<Listener>,
}

/// Opening a listening socket failed.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {addr}: {failed}{}", hint(failed))]
pub struct BindError {
    addr: SocketAddr,
    failed: SyscallError,
}

impl BindError {
    /// Wraps the system call that failed for this address.
    pub fn new(addr: SocketAddr, failed: SyscallError) -> Self {
        Self { addr, failed }
    }
}

/// Addresses that this process listens on already, by the same protocol.
#[derive(Clone, Debug, Default)]
pub struct ExistingListeners {
    /// Those that stay open.
    pub staying: Vec<SocketAddr>,
    /// Those that are about to be closed.
    pub closing: Vec<SocketAddr>,
}

impl ExistingListeners {
    fn overlaps(&self, addr: SocketAddr) -> bool {
        let mut all = self.staying.iter().chain(&self.closing);
        all.any(|&other| overlap(addr, other))
    }
}

/// An address to listen on, and the id its listener gets.
pub type ListenAddr = (ListenerId, SocketAddr);

impl Listeners {
    /// Opens a socket on each address for each of `workers`, so that an address that can't be listened on is known
    /// before anything is served. An inherited socket is shared by all workers.
    ///
    /// # Errors
    ///
    /// The address that failed, with what to do about it.
    pub fn open(
        wanted: &[ListenAddr],
        existing: &ExistingListeners,
        workers: usize,
        inherited: &mut InheritedSockets,
    ) -> Result<Self, BindError> {
        let mut of_previous = PreviousSockets::take(wanted, &mut inherited.previous_tcp);
        let mut existing = existing.clone();
        existing.closing.extend(inherited.previous_tcp.keys());
        let is_of_previous: HashSet<_> = of_previous.0.keys().copied().collect();
        let inherited = &*inherited;
        let mut open = |addr, options| {
            let listener = match (inherited.tcp.get(&addr), of_previous.next(addr)) {
                (Some(inherited), _) => inherited.try_clone()?.into(),
                (None, Some(previous)) => previous,
                (None, None) => listener::listen(addr, options)?,
            };
            // Accepted sockets inherit these options, which saves five system calls per connection.
            stream::tune_for_peer(&listener, addr.ip())?;
            Ok(listener)
        };
        let request = OpenRequest {
            listen: wanted.iter().map(|&(_, addr)| addr).collect(),
            existing: &existing,
            workers,
        };
        let local_addr = net::TcpListener::local_addr;
        let is_free =
            |addr| match inherited.tcp.contains_key(&addr) || is_of_previous.contains(&addr) {
                true => Ok(()),
                false => listener::check_address_free(addr),
            };
        let per_worker = open_per_worker(&request, is_free, &mut open, local_addr)?;
        let listener = |socket, &(id, addr): &ListenAddr| Listener {
            id,
            addr: LocalAddr(local_addr(&socket).unwrap_or(addr)),
            socket,
            is_shared: inherited.tcp.contains_key(&addr),
            is_transparent: false,
        };
        let with_ids = |sockets: Vec<net::TcpListener>| {
            let sockets = sockets.into_iter().zip(wanted);
            sockets.map(|(socket, wanted)| listener(socket, wanted))
        };
        let per_worker: Vec<Vec<_>> = per_worker
            .into_iter()
            .map(|sockets| with_ids(sockets).collect())
            .collect();
        let mut surplus = Vec::new();
        for (first, wanted) in per_worker.iter().take(1).flatten().zip(wanted) {
            let left = iter::from_fn(|| of_previous.next(first.addr.0));
            surplus.extend(left.map(|socket| listener(socket, wanted)));
        }
        Ok(Self {
            per_worker,
            surplus,
        })
    }

    /// Sets IP_TRANSPARENT on the sockets that `is_wanted` selects, so that they accept connections that a TPROXY rule
    /// redirects. A connection's listener is then its original destination.
    ///
    /// # Errors
    ///
    /// The address, where IP_TRANSPARENT is not permitted.
    pub fn with_transparent(
        mut self,
        is_wanted: impl Fn(ListenerId) -> bool,
    ) -> Result<Self, BindError> {
        let all = self.per_worker.iter_mut().flatten();
        let all = all.chain(&mut self.surplus);
        for listener in all.filter(|listener| is_wanted(listener.id)) {
            let addr = listener.addr.0;
            let with_addr = |failed| BindError { addr, failed };
            transparent::set_transparent(&listener.socket, addr.is_ipv6()).map_err(with_addr)?;
            // Connections that the rule redirects come over a network, even if the listener is on loopback.
            stream::tune_for_network(&listener.socket).map_err(with_addr)?;
            listener.is_transparent = true;
        }
        Ok(self)
    }

    /// The addresses listened on.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        let first = self.per_worker.first().into_iter().flatten();
        first.map(|listener| listener.addr.0).collect()
    }

    /// The sockets of each worker, with those that are left over distributed among them.
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

/// The previous process's sockets on the wanted addresses.
struct PreviousSockets(HashMap<SocketAddr, Vec<net::TcpListener>>);

impl PreviousSockets {
    fn take(
        wanted: &[ListenAddr],
        previous: &mut HashMap<SocketAddr, Vec<net::TcpListener>>,
    ) -> Self {
        let take = |&(_, addr): &ListenAddr| Some((addr, previous.remove(&addr)?));
        Self(wanted.iter().filter_map(take).collect())
    }

    /// The next socket on an address: the requested one, or the bound one once a socket of it was returned.
    fn next(&mut self, addr: SocketAddr) -> Option<net::TcpListener> {
        let mut sockets = self.0.remove(&addr)?;
        let first = (!sockets.is_empty()).then(|| sockets.remove(0))?;
        let bound_to = first.local_addr().unwrap_or(addr);
        self.0.insert(bound_to, sockets);
        Some(first)
    }
}

/// Opens one TCP socket for a listener that no worker serves, such as the admin endpoint.
///
/// # Errors
///
/// The address can't be listened on.
pub fn open_single(addr: SocketAddr) -> Result<net::TcpListener, BindError> {
    let socket = listener::check_address_free(addr)
        .and_then(|()| listener::listen(addr, BindOptions::default()));
    socket.map_err(|failed| BindError::new(addr, failed))
}

/// The request for [`open_per_worker`].
pub struct OpenRequest<'a> {
    /// The addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// What this process listens on already.
    pub existing: &'a ExistingListeners,
    /// How many workers get a socket on each address.
    pub workers: usize,
}

/// Opens every address for each worker; `open` makes a socket of either protocol. With port 0 the kernel chooses a port
/// for the first worker, and the others use the same port.
///
/// # Errors
///
/// The first address that failed.
pub fn open_per_worker<T>(
    request: &OpenRequest<'_>,
    is_free: impl Fn(SocketAddr) -> peername_sys::Result<()>,
    mut open: impl FnMut(SocketAddr, BindOptions) -> peername_sys::Result<T>,
    local_addr: impl Fn(&T) -> io::Result<SocketAddr>,
) -> Result<Vec<Vec<T>>, BindError> {
    let with_addr = |addr| move |failed| BindError { addr, failed };
    let mut open_all = |addrs: &[SocketAddr]| {
        let all = addrs.iter().chain(&request.existing.staying);
        let v4_ports: HashSet<_> = all.filter(|a| a.is_ipv4()).map(SocketAddr::port).collect();
        let mut open_one = |&addr: &SocketAddr| {
            let options = BindOptions {
                // Even with one worker: a reload may replace this socket by one on another address.
                reuse_port: true,
                v6_only: v4_ports.contains(&addr.port()),
            };
            open(addr, options).map_err(with_addr(addr))
        };
        addrs
            .iter()
            .map(&mut open_one)
            .collect::<Result<Vec<_>, _>>()
    };
    for &addr in &request.listen {
        // With SO_REUSEPORT a second proxy would get some of the first one's clients. An overlapping listener of this
        // process is allowed: of 127.0.0.1 and 0.0.0.0, the kernel prefers the more specific one as long as it is open.
        if !request.existing.overlaps(addr) {
            is_free(addr).map_err(with_addr(addr))?;
        }
    }
    let first = open_all(&request.listen)?;
    let chosen: Vec<_> = first
        .iter()
        .filter_map(|socket| local_addr(socket).ok())
        .collect();
    let others = (1..request.workers).map(|_| open_all(&chosen));
    iter::once(Ok(first)).chain(others).collect()
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

fn hint(error: &SyscallError) -> Cow<'static, str> {
    let hint = match error.source.kind() {
        _ if error.is_exhaustion() => {
            "; each address takes a descriptor per worker: raise LimitNOFILE or `ulimit -n`, or listen \
             on fewer ports"
        }
        io::ErrorKind::PermissionDenied if error.call.contains("TRANSPARENT") => {
            let advice = Advice::for_this_process();
            return format!("; --listen-transparent needs CAP_NET_RAW or CAP_NET_ADMIN: {advice}")
                .into();
        }
        io::ErrorKind::AddrInUse => {
            "; another program listens there (`ss -ltunp` shows it), or a listener of this one that a reload closed \
             still drains its sessions (UDP) or its backlog (TCP)"
        }
        io::ErrorKind::PermissionDenied => {
            let advice = Advice::for_this_process();
            return format!("; ports below 1024 need CAP_NET_BIND_SERVICE: {advice}").into();
        }
        io::ErrorKind::AddrNotAvailable => "; no interface of this host has that address",
        _ => "",
    };
    hint.into()
}
