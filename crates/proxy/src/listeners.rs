//! Listening sockets of all workers, before anything is served.

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
use crate::service::ListenerId;

/// One worker's socket on an address.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) id: ListenerId,
    pub(crate) addr: LocalAddr,
    pub(crate) socket: net::TcpListener,
    /// Whether another process holds it too, so that who waits in its queue is not lost with us.
    pub(crate) is_shared: bool,
    /// Whether TPROXY rules bring connections that were made to other addresses.
    pub(crate) is_transparent: bool,
}

/// Sockets that a service manager has opened, for the addresses that are to be listened on.
#[derive(Debug, Default)]
pub struct Given {
    pub(crate) tcp: HashMap<SocketAddr, InheritedSocket>,
    pub(crate) udp: HashMap<SocketAddr, InheritedSocket>,
}

impl Given {
    /// Sorts them out.
    pub fn new(all: Vec<InheritedSocket>) -> Self {
        let (tcp, udp) = all.into_iter().partition::<Vec<_>, _>(|one| one.is_stream);
        let by_addr =
            |all: Vec<InheritedSocket>| all.into_iter().map(|one| (one.addr, one)).collect();
        Self {
            tcp: by_addr(tcp),
            udp: by_addr(udp),
        }
    }

    /// One that is not for any of these addresses.
    pub fn unwanted(&self, tcp: &[SocketAddr], udp: &[SocketAddr]) -> Option<&InheritedSocket> {
        let unwanted = |given: &HashMap<SocketAddr, _>, wanted: &[SocketAddr]| {
            let mut given = given.keys().copied();
            given.find(|addr| !wanted.contains(addr))
        };
        let tcp = unwanted(&self.tcp, tcp).and_then(|addr| self.tcp.get(&addr));
        tcp.or_else(|| unwanted(&self.udp, udp).and_then(|addr| self.udp.get(&addr)))
    }
}

/// TCP sockets that nobody accepts from yet: of each worker, its own on every address.
#[derive(Debug)]
pub struct Listeners {
    pub(crate) of_workers: Vec<Vec<Listening>>,
}

/// Opening a listening socket failed.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {addr}: {failed}{}", hint(failed))]
pub struct BindError {
    pub(crate) addr: SocketAddr,
    pub(crate) failed: SyscallError,
}

impl BindError {
    /// For a listener of another kind.
    pub fn new(addr: SocketAddr, failed: SyscallError) -> Self {
        Self { addr, failed }
    }
}

/// What is listened on already, by the same protocol.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// What stays.
    pub staying: Vec<SocketAddr>,
    /// What is about to be closed.
    pub leaving: Vec<SocketAddr>,
}

impl Beside {
    fn overlaps(&self, addr: SocketAddr) -> bool {
        let mut all = self.staying.iter().chain(&self.leaving);
        all.any(|&other| overlap(addr, other))
    }
}

/// An address to be listened on, and the number its listener gets.
pub type Wanted = (ListenerId, SocketAddr);

impl Listeners {
    /// Opens a socket on each address for each of `workers`, so that whatever can't be listened on is
    /// known before anything is served. Of those that are `given`, all workers share the one socket.
    ///
    /// # Errors
    ///
    /// The address that failed, with what to do about it.
    pub fn open(
        wanted: &[Wanted],
        beside: &Beside,
        workers: usize,
        given: &Given,
    ) -> Result<Self, BindError> {
        let open = |addr, sharing| {
            let listener = match given.tcp.get(&addr) {
                Some(given) => given.try_clone()?.into(),
                None => listener::listen(addr, sharing)?,
            };
            // Accepted sockets inherit these, which saves five calls a connection.
            stream::tune_for_peer(&listener, addr.ip())?;
            Ok(listener)
        };
        let plan = Plan {
            listen: wanted.iter().map(|&(_, addr)| addr).collect(),
            beside,
            workers,
        };
        let local_addr = net::TcpListener::local_addr;
        let is_free = |addr| match given.tcp.contains_key(&addr) {
            true => Ok(()),
            false => listener::check_address_free(addr),
        };
        let of_workers = open_for_all(&plan, is_free, open, local_addr)?;
        let name = |sockets: Vec<net::TcpListener>| {
            let named = sockets.into_iter().zip(wanted);
            named.map(|(socket, &(id, addr))| Listening {
                id,
                addr: LocalAddr(local_addr(&socket).unwrap_or(addr)),
                socket,
                is_shared: given.tcp.contains_key(&addr),
                is_transparent: false,
            })
        };
        let of_workers = of_workers
            .into_iter()
            .map(|sockets| name(sockets).collect())
            .collect();
        Ok(Self { of_workers })
    }

    /// Lets the sockets of those that `is_wanted` take what a TPROXY rule gives them; a connection's
    /// listener is then where it was made to.
    ///
    /// # Errors
    ///
    /// The address, where IP_TRANSPARENT is not permitted.
    pub fn transparent(
        mut self,
        is_wanted: impl Fn(ListenerId) -> bool,
    ) -> Result<Self, BindError> {
        let all = self.of_workers.iter_mut().flatten();
        for listening in all.filter(|listening| is_wanted(listening.id)) {
            let addr = listening.addr.0;
            let named = |failed| BindError { addr, failed };
            transparent::set_transparent(&listening.socket, addr.is_ipv6()).map_err(named)?;
            // Whom the rule brings comes over a network, to loopback too.
            stream::tune_for_network(&listening.socket).map_err(named)?;
            listening.is_transparent = true;
        }
        Ok(self)
    }

    /// The addresses listened on.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        let first = self.of_workers.first().into_iter().flatten();
        first.map(|listening| listening.addr.0).collect()
    }
}

/// What is to be opened.
pub(crate) struct Plan<'a> {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) beside: &'a Beside,
    pub(crate) workers: usize,
}

/// Opens every address for each worker. With port 0 the kernel chooses for the first worker, and the
/// others share its choice.
pub(crate) fn open_for_all<T>(
    plan: &Plan<'_>,
    is_free: impl Fn(SocketAddr) -> peername_sys::Result<()>,
    open: impl Fn(SocketAddr, BindOptions) -> peername_sys::Result<T>,
    local_addr: impl Fn(&T) -> io::Result<SocketAddr>,
) -> Result<Vec<Vec<T>>, BindError> {
    let named = |addr| move |failed| BindError { addr, failed };
    let open_all = |addrs: &[SocketAddr]| {
        let all = addrs.iter().chain(&plan.beside.staying);
        let v4_ports: HashSet<_> = all.filter(|a| a.is_ipv4()).map(SocketAddr::port).collect();
        let open = |&addr: &SocketAddr| {
            let sharing = BindOptions {
                // Also with one worker: at a reload, another address may be about to take this one's place.
                reuse_port: true,
                v6_only: v4_ports.contains(&addr.port()),
            };
            open(addr, sharing).map_err(named(addr))
        };
        addrs.iter().map(open).collect::<Result<Vec<_>, _>>()
    };
    for &addr in &plan.listen {
        // With SO_REUSEPORT a second proxy would get some of the first one's clients. Where a listener of ours is in the
        // way, such as one on 127.0.0.1 of one on 0.0.0.0, the kernel prefers the narrower one as long as it is there.
        if !plan.beside.overlaps(addr) {
            is_free(addr).map_err(named(addr))?;
        }
    }
    let first = open_all(&plan.listen)?;
    let chosen: Vec<_> = first
        .iter()
        .filter_map(|socket| local_addr(socket).ok())
        .collect();
    let others = (1..plan.workers).map(|_| open_all(&chosen));
    iter::once(Ok(first)).chain(others).collect()
}

/// Whether a socket on one of them is in the way of one on the other.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    // `[::]` may take IPv4, too.
    let covers = |wide: IpAddr, narrow: IpAddr| {
        wide.is_unspecified() && (wide.is_ipv6() || narrow.is_ipv4())
    };
    let (a, b) = (one.ip(), other.ip());
    one.port() == other.port() && (a == b || covers(a, b) || covers(b, a))
}

fn hint(error: &SyscallError) -> Cow<'static, str> {
    let hint = match error.source.kind() {
        _ if error.is_exhaustion() => {
            "; each address takes a descriptor a worker: raise LimitNOFILE or `ulimit -n`, or listen \
             on fewer ports"
        }
        io::ErrorKind::PermissionDenied if error.call.contains("TRANSPARENT") => {
            let advice = Advice::now();
            return format!("; --listen-transparent needs CAP_NET_RAW or CAP_NET_ADMIN: {advice}")
                .into();
        }
        io::ErrorKind::AddrInUse => {
            "; another program listens there, which `ss -ltunp` shows, or of this one, a listener that was taken away \
             serves its last sessions (UDP) or its queue (TCP)"
        }
        io::ErrorKind::PermissionDenied => {
            let advice = Advice::now();
            return format!("; ports below 1024 need CAP_NET_BIND_SERVICE: {advice}").into();
        }
        io::ErrorKind::AddrNotAvailable => "; no interface of this host has that address",
        _ => "",
    };
    hint.into()
}
