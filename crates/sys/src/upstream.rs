//! Sockets that connect from an address that is not ours.

use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::stream::set_int;
use crate::{Failed, NameCall, Result};

/// A socket on its way to a backend: made, given a source and a mark, then connected.
#[derive(Debug)]
pub struct Upstream {
    socket: Socket,
    /// Whether its port may be that of other sockets too.
    shares_port: bool,
}

impl Upstream {
    /// A non-blocking TCP socket of the target's family.
    pub fn new(target: SocketAddr) -> Result<Self> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(target), kind, Some(Protocol::TCP))
            .call("socket(2)")?;
        Ok(Self {
            socket,
            shares_port: true,
        })
    }

    /// A non-blocking UDP socket of the target's family.
    pub fn datagram(target: SocketAddr) -> Result<Self> {
        let kind = Type::DGRAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(target), kind, Some(Protocol::UDP))
            .call("socket(2)")?;
        Ok(Self {
            socket,
            shares_port: false,
        })
    }

    /// SO_MARK, for routing by firewall mark. Needs CAP_NET_ADMIN, or CAP_NET_RAW since Linux 5.17.
    pub fn mark(&self, mark: u32) -> Result<()> {
        self.socket.set_mark(mark).call("setsockopt(SO_MARK)")
    }

    /// Lets the socket be bound to any address (IP_TRANSPARENT since Linux 2.6.28, IPV6_TRANSPARENT
    /// since 2.6.37). Needs CAP_NET_ADMIN or CAP_NET_RAW.
    pub fn transparent(&self) -> Result<()> {
        let v6 = self.socket.domain().call("getsockopt(SO_DOMAIN)")? == Domain::IPV6;
        if v6 {
            set_int(
                self.socket.as_fd(),
                libc::SOL_IPV6,
                libc::IPV6_TRANSPARENT,
                1,
            )
            .call("setsockopt(IPV6_TRANSPARENT)")
        } else {
            set_int(self.socket.as_fd(), libc::SOL_IP, libc::IP_TRANSPARENT, 1)
                .call("setsockopt(IP_TRANSPARENT)")
        }
    }

    /// Binds to `source`. With port 0 the port is chosen by connect(2), from those whose whole
    /// 4-tuple is free (IP_BIND_ADDRESS_NO_PORT, since Linux 4.2).
    ///
    /// For TCP, SO_REUSEADDR allows the port while an older connection with it is in TIME_WAIT. Not so
    /// for UDP, where two sockets could then have the same 4-tuple and take each other's datagrams:
    /// the port belongs to one socket, and EADDRINUSE says that there is one. A port below 1024 needs
    /// CAP_NET_BIND_SERVICE.
    pub fn bind(&self, source: SocketAddr) -> Result<()> {
        if source.port() == 0 {
            set_int(
                self.socket.as_fd(),
                libc::SOL_IP,
                libc::IP_BIND_ADDRESS_NO_PORT,
                1,
            )
            .call("setsockopt(IP_BIND_ADDRESS_NO_PORT)")?;
        } else if self.shares_port {
            self.socket
                .set_reuse_address(true)
                .call("setsockopt(SO_REUSEADDR)")?;
        }
        self.socket.bind(&source.into()).call("bind(2)")
    }

    /// Starts to connect. The stream is writable once the connection stands or has failed; then
    /// [`crate::stream::take_error`] tells which.
    pub fn connect(self, target: SocketAddr) -> Result<TcpStream> {
        match self.socket.connect(&target.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(source) => {
                return Err(Failed {
                    call: "connect(2)",
                    source,
                });
            }
        }
        Ok(self.socket.into())
    }

    /// Fixes the backend of a UDP socket: it receives from nobody else from now on. Nothing is sent.
    pub fn connect_datagram(self, target: SocketAddr) -> Result<UdpSocket> {
        self.socket.connect(&target.into()).call("connect(2)")?;
        Ok(self.socket.into())
    }
}

impl AsFd for Upstream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether the connection stands already, as it does right after connect(2) to this host.
pub fn is_established(socket: impl AsFd) -> bool {
    SockRef::from(&socket).peer_addr().is_ok()
}

/// The address a socket really has (getsockname(2)).
pub fn local_addr(socket: impl AsFd) -> Result<SocketAddr> {
    let addr = SockRef::from(&socket).local_addr().call("getsockname(2)")?;
    addr.as_socket()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        .call("getsockname(2)")
}
