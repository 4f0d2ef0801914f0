//! The doorbell: a connection to the listener that is not a client's.
//!
//! It is known by where it comes from: its own port, which stands in the table while the bell has it,
//! which nobody else can have at that address, and no other bell at another. One octet is sent, because a
//! listener with TCP_DEFER_ACCEPT does not show a connection that says nothing; closing the bell with the
//! octet unread resets it, so nothing of it stays in TIME_WAIT.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use peername_identity::Ports;
use peername_sys::event::epoll::{Interest, Readiness};
use peername_sys::socket::upstream::{UpstreamSocket, local_addr};
use peername_sys::tcp::stream;
use peername_sys::{NameCall, Result};

/// A bell that has been rung and not been heard yet.
#[derive(Debug)]
pub(super) struct Bell {
    /// Before the socket in the order of dropping: out of the table while the port is still ours.
    _port: Listed,
    socket: TcpStream,
    listener: SocketAddr,
    said: bool,
}

/// A port that stands in the table.
#[derive(Debug)]
struct Listed {
    port: u16,
    bells: Ports<'static>,
}

impl Bell {
    pub(super) fn ring(listener: SocketAddr, bells: Ports<'static>) -> Result<Self> {
        match listener.ip() {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Self::at(Ipv6Addr::LOCALHOST, listener, bells)
                .or_else(|error| {
                    // Where loopback has no IPv6. If nobody listens, that is the answer.
                    match error.source.kind() {
                        ErrorKind::ConnectionRefused => Err(error),
                        _ => Self::at(Ipv4Addr::LOCALHOST, listener, bells),
                    }
                }),
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Self::at(Ipv4Addr::LOCALHOST, listener, bells),
            ip => Self::at(ip, listener, bells),
        }
    }

    fn at(ip: impl Into<IpAddr>, listener: SocketAddr, bells: Ports<'static>) -> Result<Self> {
        // With the scope of a link-local address.
        let mut to = listener;
        to.set_ip(ip.into());
        let mut from = to;
        from.set_port(0);
        // Before the connection can be accepted.
        let (socket, port) = listed(from, bells)?;
        let mut bell = Self {
            _port: port,
            socket: socket.connect(to)?,
            listener,
            said: false,
        };
        // On one host the connection is there already, or was refused already.
        if let Some(error) = stream::take_error(&bell.socket).call("getsockopt(SO_ERROR)")? {
            return Err(error).call("connect(2)");
        }
        bell.say();
        Ok(bell)
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn is_for(&self, listener: SocketAddr) -> bool {
        self.listener == listener
    }

    /// What to wait for next.
    pub(super) fn awaits(&self) -> Interest {
        match self.said {
            true => Interest::Readable,
            // The listener's queue is full, and the kernel keeps trying.
            false => Interest::Writable,
        }
    }

    /// Something has happened; returns whether the bell is still to be heard.
    pub(super) fn go_on(&mut self, found: Readiness) -> bool {
        if !self.said {
            self.say();
        }
        !(found.readable || found.read_closed || found.hung_up)
    }

    fn say(&mut self) {
        self.said |= stream::send(&self.socket, b"!").is_ok();
    }
}

/// A socket at this address with a port that no other bell has, and that stands in the table.
///
/// # Errors
///
/// EADDRINUSE from bind(2) where there is none, for the time being.
fn listed(at: SocketAddr, bells: Ports<'static>) -> Result<(UpstreamSocket, Listed)> {
    // Bound until one is found, so that none is chosen twice.
    let mut others = Vec::new();
    for _ in 0..PORTS_TRIED {
        let socket = UpstreamSocket::new_tcp_exclusive_port(at)?;
        socket.bind(at)?;
        match Listed::new(local_addr(&socket)?.port(), bells) {
            Some(port) => return Ok((socket, port)),
            None => others.push(socket),
        }
    }
    Err(ErrorKind::AddrInUse).call("bind(2), for a doorbell")
}

impl Listed {
    /// `None` if another bell has it, at another address of this host's: the two could not be told apart, and the
    /// first to be taken out of the table would make the other a client.
    fn new(port: u16, bells: Ports<'static>) -> Option<Self> {
        bells.insert(port).then(|| Self { port, bells })
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.bells.remove(self.port);
    }
}

/// The kernel chooses at random among thousands, so one that another bell has is rare.
const PORTS_TRIED: usize = 8;
