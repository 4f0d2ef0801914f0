//! The ports of the jail's listeners. A server of the program that binds one takes it from the interceptor.
//!
//! ```text
//!   bind(0.0.0.0:443) ─▶ the interceptor closes its listeners on 443
//!   connect(127.0.0.1:443) ─▶ the program's server
//!   connect(198.51.100.7:443) ─▶ 198.51.100.7, at the alternate port of 443 ─▶ interceptor
//! ```
//!
//! The mediator holds no listeners itself: they would outlive the interceptor, and connections to them would hang. So it asks
//! the interceptor by a channel to close those of a port.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use peername_sys::ipc::fd_passing;
use peername_sys::netlink::{SocketLookup, TcpLookup};
use peername_sys::socket::raw_address;
use peername_sys::tcp::listener;
use peername_sys::tcp::socket_info::{current_netns_cookie, netns_cookie};
use peername_sys::{Errno, NameCall, Result};

use super::call_error::has_errno;
use crate::host_servers::HostServers;
use crate::network::{DNS_PORT, JAIL_ADDRESSES, alternate_ports};

/// The ports of the jail's listeners, and which of them the program has taken.
#[derive(Debug)]
pub struct ListenerPorts {
    /// To the interceptor's [`receive`].
    channel: OwnedFd,
    alternates: BTreeMap<u16, u16>,
    /// Those of the jail's ports at which connections to loopback go to the interceptor, whether or not the host is seen to have
    /// a server there.
    answered: BTreeSet<u16>,
    host_servers: HostServers,
    taken: BTreeSet<u16>,
    /// The ports of loopback at which a connection was reported as refused, maybe because a server of the program was not
    /// started yet.
    refused: BTreeSet<u16>,
    /// The cookie of the jail's network namespace: ports of another one are not the jail's.
    network: u64,
}

impl ListenerPorts {
    /// The ports on which the jail listens, none of which is taken yet. To be called in the jail's network. At `answered`,
    /// some of them, the interceptor answers connections to loopback in any case.
    #[must_use]
    pub fn new(
        channel: OwnedFd,
        ports: &BTreeSet<u16>,
        answered: BTreeSet<u16>,
        host_servers: HostServers,
    ) -> Self {
        Self {
            channel,
            alternates: alternate_ports(ports),
            answered,
            host_servers,
            taken: BTreeSet::new(),
            refused: BTreeSet::new(),
            network: current_netns_cookie(),
        }
    }

    /// Takes out the descriptors, which a forked process gets separately. The returned function puts the ports together again.
    pub(super) fn into_parts(self) -> (Vec<OwnedFd>, impl FnOnce(Vec<OwnedFd>) -> Option<Self>) {
        let fds = std::iter::once(self.channel).chain(self.host_servers.into_fd());
        let build = move |fds: Vec<OwnedFd>| {
            let mut fds = fds.into_iter();
            Some(Self {
                channel: fds.next()?,
                host_servers: HostServers::from_fd(fds.next()),
                ..self
            })
        };
        (fds.collect(), build)
    }

    /// Binds the socket. If a listener of the jail has the port, the listener is closed first.
    pub(super) fn bind(&mut self, socket: impl AsFd, address: &[u8]) -> io::Result<()> {
        let Some(addr) = inet_address(address) else {
            return raw_address::bind(&socket, address);
        };
        let bound = match raw_address::bind(&socket, address) {
            Err(error) if has_errno(&error, Errno::ADDRINUSE) && self.take_port(&socket, addr) => {
                // The stopped listener and the connections that it has accepted are still bound to the port.
                raw_address::bind_reusing(&socket, address)
            }
            bound => bound,
        };
        if bound.is_ok() && self.is_tcp_in_jail(&socket) && self.refused.remove(&addr.port()) {
            self.report(BOUND, addr);
        }
        bound
    }

    /// Takes the port from the interceptor, unless it is taken already. Returns `false` if the port is not one of the jail's
    /// listeners, or if the interceptor does not answer.
    fn take_port(&mut self, socket: impl AsFd, addr: SocketAddr) -> bool {
        let port = addr.port();
        if !self.alternates.contains_key(&port)
            || !is_jail_address(addr.ip())
            || !self.is_tcp_in_jail(socket)
        {
            return false;
        }
        self.taken.contains(&port) || {
            let closed = fd_passing::send_word(&self.channel, port.into(), None)
                .and_then(|()| fd_passing::receive_word(&self.channel));
            let is_closed = matches!(closed, Ok(Some(_)));
            is_closed && self.taken.insert(port)
        }
    }

    /// The address to connect to instead of this one.
    ///
    /// # Errors
    ///
    /// ECONNREFUSED where the program would find no listener without the jail, which is reported: for an alternate port, and on
    /// loopback for a port at which neither the program nor the host has a server.
    pub(super) fn redirect(
        &mut self,
        socket: impl AsFd,
        mut address: Vec<u8>,
    ) -> io::Result<Vec<u8>> {
        let Some(addr) = inet_address(&address) else {
            return Ok(address);
        };
        let port = addr.port();
        let is_jails = is_jail_address(addr.ip());
        let is_taken = self.taken.contains(&port);
        let is_alternate = self.is_alternate(port);
        let is_refused = is_alternate || is_jails && !is_taken && self.lacks_server(addr);
        let is_moved = is_taken && !is_jails;
        if !(is_refused || is_moved) || !self.is_tcp_in_jail(&socket) {
            return Ok(address);
        }
        match self.alternates.get(&port) {
            Some(alternate) if is_moved => {
                address[PORT].copy_from_slice(&alternate.to_be_bytes());
                Ok(address)
            }
            _ => {
                self.report_refused(socket, &address);
                Err(Errno::CONNREFUSED.into())
            }
        }
    }

    /// Whether only the interceptor would answer at this address of the jail, where outside nothing listens: a program that waits
    /// for its own server would take that for the server.
    fn lacks_server(&self, addr: SocketAddr) -> bool {
        let port = addr.port();
        self.alternates.contains_key(&port)
            && !self.answered.contains(&port)
            && !self.host_servers.may_listen(addr)
    }

    fn is_alternate(&self, port: u16) -> bool {
        self.alternates.values().any(|&alternate| alternate == port)
    }

    /// Whether nothing listens at this address of another host: not the jail, and no server of the program on all addresses.
    /// Such a server drops a connection without an answer while its accept backlog is full.
    pub(super) fn lacks_listener(&self, address: &[u8]) -> bool {
        inet_address(address).is_some_and(|addr| {
            let port = addr.port();
            let is_jails = self.alternates.contains_key(&port) || self.is_alternate(port);
            !is_jail_address(addr.ip())
                && port != DNS_PORT
                && !is_jails
                && !has_program_listener(addr)
        })
    }

    /// Tells the interceptor that a connection was refused: to another host, or to loopback where the host has a server, which
    /// the program may have meant and can't reach.
    pub(super) fn report_refused(&mut self, socket: impl AsFd, address: &[u8]) {
        let Some(addr) = inet_address(address) else {
            return;
        };
        if !self.is_tcp_in_jail(socket) {
            return;
        }
        let is_loopback = addr.ip().to_canonical().is_loopback();
        let is_denial = if is_loopback {
            self.host_servers.has_listener(addr)
        } else {
            !is_jail_address(addr.ip())
        };
        if is_denial {
            if is_loopback {
                self.refused.insert(addr.port());
            }
            self.report(REFUSED, addr);
        }
    }

    /// Sends the interceptor a message about an address, and waits while the channel is full: the exit code of `--fail-on-deny`
    /// and the audit log depend on each message.
    fn report(&self, kind: &str, addr: SocketAddr) {
        let message = format!("{kind}{addr}");
        // Fails only once the interceptor no longer receives, which its own verdict says.
        let _ = fd_passing::send_bytes(&self.channel, message.as_bytes(), None);
    }

    /// Whether it is a TCP socket of the jail's network.
    fn is_tcp_in_jail(&self, socket: impl AsFd) -> bool {
        raw_address::is_stream(&socket) && netns_cookie(socket) == self.network
    }
}

/// A message of the mediator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromMediator {
    /// A request to close the listeners of a port, which are closed now. At most so many connections were reset in their accept
    /// backlogs.
    Closed(usize),
    /// A connection of the program to this address was refused, because nothing listens there in the jail. On loopback the host
    /// has a listener at the address.
    Refused(SocketAddr),
    /// The program has bound this address, after a connection to its port of loopback was refused.
    Bound(SocketAddr),
    /// No message: the mediator has exited.
    Exited,
}

/// Receives a message of the mediator, in the interceptor: closes the listeners of a port if that was requested.
///
/// # Errors
///
/// EAGAIN on a non-blocking channel without a message; those of shutdown(2).
pub fn receive(channel: impl AsFd, listeners: &[(u16, OwnedFd)]) -> Result<FromMediator> {
    let mut bytes = [0; MAX_MESSAGE];
    let (length, _) = fd_passing::receive_bytes(&channel, &mut bytes)?;
    let message = bytes.get(..length).unwrap_or_default();
    if message.is_empty() {
        return Ok(FromMediator::Exited);
    }
    let Ok(word) = <[u8; 8]>::try_from(message).map(u64::from_ne_bytes) else {
        let text = std::str::from_utf8(message).unwrap_or_default();
        let parse_addr = |kind| text.strip_prefix(kind)?.parse().ok();
        return parse_addr(REFUSED)
            .map(FromMediator::Refused)
            .or_else(|| parse_addr(BOUND).map(FromMediator::Bound))
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
            .call("recvmsg(2), from the mediator");
    };
    let mut unserved = 0;
    for (_, socket) in listeners
        .iter()
        .filter(|(port, _)| u64::from(*port) == word)
    {
        // The program makes no connection in between: the mediator waits. A worker may still accept one that is counted.
        unserved += listener::accept_queue_len(socket)?;
        listener::stop(socket)?;
    }
    fd_passing::send_word(channel, word, None)?;
    Ok(FromMediator::Closed(unserved))
}

/// Whether servers of the program are reached at this address: every loopback address, those that the jail has, and the
/// unspecified ones, which mean all.
fn is_jail_address(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || ip.is_unspecified() || JAIL_ADDRESSES.contains(&ip)
}

/// Whether a server of the program listens at this address: `false` also where the lookup fails. The mediator is in the jail's
/// network.
fn has_program_listener(addr: SocketAddr) -> bool {
    let client = SocketAddr::new(addr.ip(), 0);
    let found = SocketLookup::open().and_then(|lookup| lookup.tcp(addr, client));
    found.is_ok_and(|found| found == TcpLookup::Listener)
}

/// The address and port of a `struct sockaddr_in` or `sockaddr_in6`; `None` of another family.
fn inet_address(address: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(*address.first_chunk()?));
    let port = u16::from_be_bytes(*address.get(PORT)?.first_chunk()?);
    let ip = match family {
        AF_INET => Ipv4Addr::from(*address.get(4..)?.first_chunk::<4>()?).into(),
        AF_INET6 => Ipv6Addr::from(*address.get(8..)?.first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Begins a message about a refused connection; the address follows as text. The message is longer than a word, unlike a
/// request to close the listeners of a port.
const REFUSED: &str = "refused ";
/// Begins a message about a bound socket.
const BOUND: &str = "bound by the program ";
const MAX_MESSAGE: usize = 96;
/// The bytes of the port in both structs.
const PORT: std::ops::Range<usize> = 2..4;
const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connections_that_a_closed_listener_resets_are_counted() {
        let (mediator, interceptor) = fd_passing::seqpacket_pair().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let other = TcpListener::bind(("127.0.0.2", addr.port())).unwrap();
        let other_addr = other.local_addr().unwrap();
        let clients = [addr, addr, other_addr].map(|addr| TcpStream::connect(addr).unwrap());
        let listeners = [listener, other].map(|listener| (addr.port(), OwnedFd::from(listener)));
        fd_passing::send_word(&mediator, addr.port().into(), None).unwrap();
        let received = receive(&interceptor, &listeners).unwrap();
        assert_eq!(received, FromMediator::Closed(clients.len()));
        assert!(TcpStream::connect(addr).is_err());
    }
}
