//! The wake-up connection: makes a listener readable although no client has connected.
//!
//! The library and the supervisor recognise it by its address. Its port is listed in the table for as long as the connection
//! is open; no other process can have that port at that address, and no other wake-up connection has it at another address.
//! One byte is sent, because a listener with TCP_DEFER_ACCEPT does not show a silent connection. Closing the connection with
//! that byte unread resets it, so nothing stays in TIME_WAIT.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Instant;

use peername_identity::PortSet;
use peername_sys::event::epoll::{Interest, Readiness};
use peername_sys::socket::upstream::{UpstreamSocket, local_addr};
use peername_sys::tcp::stream;
use peername_sys::{NameCall, Result};

/// A wake-up connection that was opened and not accepted yet.
#[derive(Debug)]
pub(super) struct WakeupConnection {
    /// Dropped before the socket: the port leaves the table while it is still bound.
    _port: ListedPort,
    pub(super) socket: TcpStream,
    pub(super) listener: SocketAddr,
    opened_at: Instant,
    /// Whether the byte was sent, which needs an established connection.
    is_byte_sent: bool,
}

/// A port that is listed in the table, until it is dropped.
#[derive(Debug)]
struct ListedPort {
    port: u16,
    wakeup_ports: PortSet<'static>,
}

impl WakeupConnection {
    /// Opens a wake-up connection to the listener at this address; over loopback if that is unspecified.
    ///
    /// # Errors
    ///
    /// ECONNREFUSED: nothing listens there. Otherwise there is no port, descriptor or route for now.
    pub(super) fn open(listener: SocketAddr, wakeup_ports: PortSet<'static>) -> Result<Self> {
        match listener.ip() {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
                Self::connect(Ipv6Addr::LOCALHOST, listener, wakeup_ports).or_else(|error| {
                    // Loopback may have no IPv6. A refusal is final: nothing listens there.
                    match error.source.kind() {
                        ErrorKind::ConnectionRefused => Err(error),
                        _ => Self::connect(Ipv4Addr::LOCALHOST, listener, wakeup_ports),
                    }
                })
            }
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => {
                Self::connect(Ipv4Addr::LOCALHOST, listener, wakeup_ports)
            }
            ip => Self::connect(ip, listener, wakeup_ports),
        }
    }

    fn connect(
        ip: impl Into<IpAddr>,
        listener: SocketAddr,
        wakeup_ports: PortSet<'static>,
    ) -> Result<Self> {
        // Derived from the listener's address, to keep the scope of a link-local one.
        let mut to = listener;
        to.set_ip(ip.into());
        let mut from = to;
        from.set_port(0);
        // The port is listed before the connection can be accepted.
        let (socket, port) = bind_listed(from, wakeup_ports)?;
        let socket = socket.connect(to)?;
        let mut wakeup = Self {
            _port: port,
            socket,
            listener,
            opened_at: Instant::now(),
            is_byte_sent: false,
        };
        // On the same host the connection is established or refused by now.
        if let Some(error) = stream::take_error(&wakeup.socket).call("getsockopt(SO_ERROR)")? {
            return Err(error).call("connect(2)");
        }
        wakeup.send_byte();
        Ok(wakeup)
    }

    /// When the connection was opened, if it is not established so far.
    pub(super) fn unanswered_since(&self) -> Option<Instant> {
        (!self.is_byte_sent).then_some(self.opened_at)
    }

    /// The event to wait for next.
    pub(super) fn interest(&self) -> Interest {
        if self.is_byte_sent {
            Interest::Readable
        } else {
            // The accept backlog is full, and the kernel retries the SYN.
            Interest::Writable
        }
    }

    /// Processes an event. Returns whether the connection is still waiting to be accepted.
    pub(super) fn drive(&mut self, event: Readiness) -> bool {
        if !self.is_byte_sent {
            self.send_byte();
        }
        !(event.readable || event.read_closed || event.hung_up)
    }

    fn send_byte(&mut self) {
        self.is_byte_sent |= stream::send(&self.socket, b"!").is_ok();
    }
}

/// Binds a socket at this address to a port that no other wake-up connection has, and lists the port in the table.
///
/// # Errors
///
/// EADDRINUSE of bind(2) if no such port was found for now.
fn bind_listed(
    at: SocketAddr,
    wakeup_ports: PortSet<'static>,
) -> Result<(UpstreamSocket, ListedPort)> {
    // Sockets at other ports stay bound until a port is found, so that the kernel chooses no port twice.
    let mut others = Vec::new();
    for _ in 0..PORTS_TRIED {
        let socket = UpstreamSocket::new_tcp_exclusive_port(at)?;
        socket.bind(at)?;
        match ListedPort::new(local_addr(&socket)?.port(), wakeup_ports) {
            Some(port) => return Ok((socket, port)),
            None => others.push(socket),
        }
    }
    Err(ErrorKind::AddrInUse).call("bind(2), for a wake-up connection")
}

impl ListedPort {
    /// `None` if another wake-up connection has the port, at another address of this host: the two could not be
    /// distinguished, and closing the first would make the other look like a client.
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
