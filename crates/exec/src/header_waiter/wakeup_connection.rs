//! The wake-up connection: makes a listener readable although no client has connected.
//!
//! The library and the supervisor recognize it by the secret that it sends, and before that by its source
//! ([`peername_identity::Settings::is_wakeup`]). Its port is listed in the table for as long as the connection is open; no other
//! process can have that port at that address, and no other wake-up connection of its kind (from 127.0.0.1, ::1, own addresses)
//! has it at another address. The secret is sent at once, because a listener with TCP_DEFER_ACCEPT does not show a silent
//! connection. Closing the connection with the secret unread resets it, so nothing stays in TIME_WAIT.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use peername_identity::{PortSet, Settings, WAKEUP_SECRET_LEN};
use peername_sys::event::epoll::{Interest, Readiness};
use peername_sys::netlink::is_delivered_locally;
use peername_sys::socket::is_ipv6_only;
use peername_sys::socket::transparent::is_transparent;
use peername_sys::socket::upstream::{UpstreamSocket, local_addr};
use peername_sys::tcp::stream;
use peername_sys::{NameCall, Result, SyscallError};

use super::header_peek::close_with_reset;
use super::listeners::ListenerAddr;

/// A wake-up connection that was opened and not accepted yet.
#[derive(Debug)]
pub(super) struct WakeupConnection {
    /// Dropped before the socket: the port leaves the table while it is still bound.
    _port: ListedPort,
    pub(super) socket: TcpStream,
    pub(super) listener: ListenerAddr,
    pub(super) opened_at: Instant,
    secret: [u8; WAKEUP_SECRET_LEN],
    /// Whether the secret was sent, which needs an established connection.
    is_secret_sent: bool,
    /// Whether a wake-up connection that was opened later was accepted before this one, which then is in the backlog of another
    /// listener at the address (SO_REUSEPORT).
    pub(super) is_passed_over: bool,
}

/// A port that is listed in the table, until it is dropped.
#[derive(Debug)]
struct ListedPort {
    port: u16,
    wakeup_ports: PortSet<'static>,
}

impl WakeupConnection {
    /// Opens a wake-up connection to the listener that has accepted `connection`.
    ///
    /// # Errors
    ///
    /// ECONNREFUSED: nothing listens there. EADDRNOTAVAIL: no address of this host reaches the listener. Otherwise there is no port,
    /// descriptor or route for now.
    pub(super) fn open(
        listener: ListenerAddr,
        connection: impl AsFd,
        settings: Settings<'static>,
    ) -> Result<Self> {
        let mut opened: Result<Self> =
            Err(ErrorKind::AddrNotAvailable).call("bind(2), for a wake-up connection");
        for to in destinations(listener, connection) {
            for from in sources(to, listener.interface) {
                opened = Self::connect(from, to, listener, settings);
                if opened.as_ref().err().is_none_or(is_refusal) {
                    return opened;
                }
            }
        }
        opened
    }

    fn connect(
        from: SocketAddr,
        to: SocketAddr,
        listener: ListenerAddr,
        settings: Settings<'static>,
    ) -> Result<Self> {
        // The port is listed before the connection can be accepted.
        let (socket, port) = bind_listed(from, listener.interface, settings)?;
        let socket = socket.connect(to)?;
        let mut wakeup = Self {
            _port: port,
            socket,
            listener,
            opened_at: Instant::now(),
            secret: settings.wakeup_secret().unwrap_or_default(),
            is_secret_sent: false,
            is_passed_over: false,
        };
        // On the same host the connection is established or refused by now.
        wakeup.check_error()?;
        wakeup.send_secret();
        Ok(wakeup)
    }

    fn check_error(&self) -> Result<()> {
        match stream::take_error(&self.socket).call("getsockopt(SO_ERROR)")? {
            Some(error) => Err(error).call("connect(2)"),
            None => Ok(()),
        }
    }

    /// Whether the listener's host has answered.
    pub(super) fn is_established(&self) -> bool {
        self.is_secret_sent
    }

    /// Whether the listener has not answered for a while.
    pub(super) fn is_long_unanswered(&self, now: Instant) -> bool {
        !self.is_secret_sent && self.opened_at + UNANSWERED_AFTER <= now
    }

    /// Whether the connection was opened less than `patience` ago or, as long as it has no answer, less than [`UNANSWERED_AFTER`].
    pub(super) fn is_recent(&self, now: Instant, patience: Duration) -> bool {
        if self.is_established() {
            self.opened_at + patience > now
        } else {
            !self.is_long_unanswered(now)
        }
    }

    /// The event to wait for next.
    pub(super) fn interest(&self) -> Interest {
        if self.is_secret_sent {
            Interest::Readable
        } else {
            // The accept backlog is full, and the kernel retries the SYN.
            Interest::Writable
        }
    }

    /// Processes an event. Returns whether the connection is still waiting to be accepted.
    ///
    /// # Errors
    ///
    /// Those of [`WakeupConnection::open`], if it was not established at once; ETIMEDOUT without an answer.
    pub(super) fn drive(&mut self, event: Readiness) -> Result<bool> {
        if !self.is_secret_sent {
            self.check_error()?;
            self.send_secret();
        }
        Ok(!(event.readable || event.read_closed || event.hung_up))
    }

    fn send_secret(&mut self) {
        self.is_secret_sent |= stream::send(&self.socket, &self.secret).is_ok();
    }

    /// Closes a connection that may be in an accept backlog. It stays there, with the secret, and the address is free again.
    pub(super) fn close_with_reset(self) {
        close_with_reset(&self.socket);
    }
}

/// Whether nothing listens at the address, or a firewall refuses: then no other address is tried.
pub(super) fn is_refusal(error: &SyscallError) -> bool {
    error.source.kind() == ErrorKind::ConnectionRefused
}

/// The addresses by which to wake a listener for this connection of it, the best first.
///
/// For a wildcard listener that is the address which the connection has reached: at any other, and at loopback too, another
/// listener may have the port. Loopback is for the addresses that this host does not have: TPROXY delivers to them, or the host
/// has lost one meanwhile. A listener at a single address that this host has lost can't be woken, and one that is bound to an
/// interface can be woken at the interface's own addresses only.
fn destinations(at: ListenerAddr, connection: impl AsFd) -> Vec<SocketAddr> {
    let ListenerAddr {
        addr: listener,
        interface,
        ..
    } = at;
    let (ip, port) = (listener.ip().to_canonical(), listener.port());
    if !ip.is_unspecified() {
        let own = with_endpoint(listener, ip, port);
        // Where a sandbox forbids netlink: true, because [`is_bindable`] fails for an address of a local route (AnyIP, IP_FREEBIND).
        let is_local = is_local(own, interface).unwrap_or(true);
        return is_local.then_some(own).into_iter().collect();
    }
    let mut destinations = Vec::new();
    let reached = local_addr(&connection);
    let reached = reached.map(|addr| with_endpoint(addr, addr.ip().to_canonical(), port));
    if !is_transparent(&connection).unwrap_or(false)
        && let Ok(reached) = reached
        && !reached.ip().is_unspecified()
        && is_local(reached, interface).unwrap_or_else(|_| is_bindable(reached))
    {
        destinations.push(reached);
    }
    if interface != 0 {
        return destinations;
    }
    if ip.is_ipv6() {
        destinations.push(with_endpoint(listener, Ipv6Addr::LOCALHOST, port));
    }
    // Loopback may have no IPv6.
    if ip.is_ipv4() || !is_ipv6_only(&connection) {
        destinations.push(with_endpoint(listener, Ipv4Addr::LOCALHOST, port));
    }
    destinations
}

/// A socket's address with another IP address and port. It keeps the scope of a link-local one.
fn with_endpoint(mut addr: SocketAddr, ip: impl Into<IpAddr>, port: u16) -> SocketAddr {
    addr.set_ip(ip.into());
    addr.set_port(port);
    addr
}

/// Whether a connection to this address stays on this host, by a socket that is bound to this interface, or to none (0).
/// Otherwise one from ::1, or from an address that `ip_nonlocal_bind` permits, would leave it.
///
/// # Errors
///
/// A sandbox forbids netlink, or the interface is gone.
fn is_local(to: SocketAddr, interface: u32) -> Result<bool> {
    let interface = match to {
        SocketAddr::V6(to) if interface == 0 => to.scope_id(),
        _ => interface,
    };
    is_delivered_locally(to.ip(), interface)
}

/// Whether a socket can be bound to this IP address, which is an address of this host then, unless `ip_nonlocal_bind` is set.
fn is_bindable(mut addr: SocketAddr) -> bool {
    addr.set_port(0);
    let bound = UpstreamSocket::new_tcp_exclusive_port(addr).and_then(|socket| socket.bind(addr));
    !bound.is_err_and(|error| error.is_address_unavailable())
}

/// The addresses from which to connect there, the best first. No NAT rule for a network of this host translates loopback. But
/// loopback does not reach link-local addresses, and may have no address. From 127.0.0.1 the kernel refuses to connect to
/// another host; from ::1 it does not, and the packet leaves this host. So does the answer of a listener that is bound to an
/// interface, which has no route to loopback.
fn sources(to: SocketAddr, interface: u32) -> Vec<SocketAddr> {
    let mut own = to;
    own.set_port(0);
    match to.ip() {
        _ if interface != 0 => vec![own],
        IpAddr::V6(ip) if ip.is_unicast_link_local() => vec![own],
        IpAddr::V6(_) => vec![SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0), own],
        IpAddr::V4(_) => vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), own],
    }
}

/// Binds a socket at this address to a port that no other wake-up connection of its kind has, and lists the port in the table. With an
/// `interface` (0 for none), binds the socket to that first: another one may have the same address.
///
/// # Errors
///
/// EADDRINUSE of bind(2) if no such port was found for now.
fn bind_listed(
    at: SocketAddr,
    interface: u32,
    settings: Settings<'static>,
) -> Result<(UpstreamSocket, ListedPort)> {
    let wakeup_ports = settings.wakeup_ports(at.ip());
    // Sockets at other ports stay bound until a port is found, so that the kernel chooses no port twice.
    let mut others = Vec::new();
    for _ in 0..PORTS_TRIED {
        let socket = UpstreamSocket::new_tcp_exclusive_port(at)?;
        if interface != 0 {
            socket.bind_interface(interface)?;
        }
        socket.bind(at)?;
        match ListedPort::new(local_addr(&socket)?.port(), wakeup_ports) {
            Some(port) => return Ok((socket, port)),
            None => others.push(socket),
        }
    }
    Err(ErrorKind::AddrInUse).call("bind(2), for a wake-up connection")
}

impl ListedPort {
    /// `None` if another wake-up connection of its kind (from loopback, from own addresses) has the port, at another address of
    /// this host: the two could not be distinguished, and closing the first would make the other look like a client.
    fn new(port: u16, wakeup_ports: PortSet<'static>) -> Option<Self> {
        wakeup_ports
            .insert(port)
            .then(|| Self { port, wakeup_ports })
    }
}

impl Drop for ListedPort {
    fn drop(&mut self) {
        self.wakeup_ports.remove(self.port);
    }
}

/// The number of attempts. The kernel chooses at random among thousands of ports, so a collision is rare.
const PORTS_TRIED: usize = 8;

/// A wake-up connection that gets no answer is logged after this time, and another one opened; one that can't be opened is given
/// up.
pub(super) const UNANSWERED_AFTER: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn wildcard_listener_is_woken_where_its_client_has_connected() {
        let woken_at = |listener: &str, reached: &str| {
            let listener = TcpListener::bind(listener).unwrap();
            let mut to = listener.local_addr().unwrap();
            to.set_ip(reached.parse().unwrap());
            let _client = TcpStream::connect(to).unwrap();
            let (connection, _) = listener.accept().unwrap();
            let at = ListenerAddr::of_bound(&listener, listener.local_addr().unwrap());
            let destinations = destinations(at, &connection);
            destinations
                .into_iter()
                .map(|to| to.ip().to_string())
                .collect::<Vec<_>>()
        };
        let at_another = woken_at("0.0.0.0:0", "127.0.0.2");
        assert_eq!(at_another, ["127.0.0.2", "127.0.0.1"]);
        let mapped = woken_at("[::]:0", "127.0.0.2");
        assert_eq!(mapped, ["127.0.0.2", "::1", "127.0.0.1"]);
        assert_eq!(woken_at("127.0.0.3:0", "127.0.0.3"), ["127.0.0.3"]);
    }

    #[test]
    fn address_of_another_host_is_not_bindable() {
        let is_bindable = |addr: &str| is_bindable(addr.parse().unwrap());
        assert!(is_bindable("127.0.0.1:443") && !is_bindable("192.0.2.1:443"));
    }
}
