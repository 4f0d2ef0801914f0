//! Sockets that connect from an address that is not ours.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::socket::set_int;
use crate::socket::transparent;
use crate::{NameCall, Result, SyscallError};

/// A socket on its way to a backend: made, given a source and a mark, then connected.
#[derive(Debug)]
pub struct UpstreamSocket {
    socket: Socket,
    v6: bool,
    /// Whether other sockets may have the same port.
    shares_port: bool,
}

impl UpstreamSocket {
    /// A non-blocking TCP socket of the target's family.
    pub fn new_tcp(target: SocketAddr) -> Result<Self> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(target), kind, Some(Protocol::TCP))
            .call("socket(2)")?;
        Ok(Self {
            socket,
            v6: target.is_ipv6(),
            shares_port: true,
        })
    }

    /// As [`UpstreamSocket::new_tcp`], but with a port that no other socket has at the same address.
    pub fn new_tcp_exclusive_port(target: SocketAddr) -> Result<Self> {
        Self::new_tcp(target).map(|upstream| Self {
            shares_port: false,
            ..upstream
        })
    }

    /// A non-blocking UDP socket of the target's family, to end with [`UpstreamSocket::connect_udp`].
    ///
    /// Its port is its own: if two UDP sockets shared one (SO_REUSEADDR), they could have the same
    /// 4-tuple, and one would get the other's datagrams. EADDRINUSE from [`UpstreamSocket::bind`] says that
    /// some socket has the port, at this address or at all.
    pub fn new_udp(target: SocketAddr) -> Result<Self> {
        let kind = Type::DGRAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(target), kind, Some(Protocol::UDP))
            .call("socket(2)")?;
        Ok(Self {
            socket,
            v6: target.is_ipv6(),
            shares_port: false,
        })
    }

    /// SO_MARK, for routing by firewall mark. Needs CAP_NET_ADMIN, or CAP_NET_RAW since Linux 5.17.
    pub fn set_mark(&self, mark: u32) -> Result<()> {
        self.socket.set_mark(mark).call("setsockopt(SO_MARK)")
    }

    /// Lets the socket be bound to any address: see [`transparent::set`].
    pub fn set_transparent(&self) -> Result<()> {
        transparent::set_transparent(&self.socket, self.v6)
    }

    /// Binds to `source`, port and all. SO_REUSEADDR allows the port while an older connection with
    /// it is in TIME_WAIT. A port below 1024 needs CAP_NET_BIND_SERVICE.
    ///
    /// As long as the socket lives, connect(2) chooses its port for no other socket of this network,
    /// whatever that one's addresses: see [`UpstreamSocket::bind_port_at_connect`].
    pub fn bind(&self, source: SocketAddr) -> Result<()> {
        self.reuse_address()?;
        self.socket.bind(&source.into()).call("bind(2)")
    }

    /// Binds to the address and leaves the port to connect(2), which takes one whose whole 4-tuple is
    /// free (IP_BIND_ADDRESS_NO_PORT, since Linux 4.2).
    pub fn bind_any_port(&self, source: IpAddr) -> Result<()> {
        self.reuse_address()?;
        self.set_ip(
            libc::IP_BIND_ADDRESS_NO_PORT,
            1,
            "setsockopt(IP_BIND_ADDRESS_NO_PORT)",
        )?;
        self.socket
            .bind(&SocketAddr::new(source, 0).into())
            .call("bind(2)")
    }

    /// As [`UpstreamSocket::bind_any_port`], with one port to choose from, which must be one of
    /// [`ephemeral_ports`] (IP_LOCAL_PORT_RANGE, since Linux 6.3; else ENOPROTOOPT).
    ///
    /// A port that was bound by number is chosen for nobody else. With clients on most ports, a host
    /// would soon be unable to connect anywhere; a port that was chosen stays shared.
    pub fn bind_port_at_connect(&self, source: SocketAddr) -> Result<()> {
        let port = libc::c_int::from(source.port());
        let only = port | port << 16;
        self.set_ip(IP_LOCAL_PORT_RANGE, only, "setsockopt(IP_LOCAL_PORT_RANGE)")?;
        self.bind_any_port(source.ip())
    }

    /// On every TCP socket of ours: one without it would keep the others from its port.
    fn reuse_address(&self) -> Result<()> {
        if !self.shares_port {
            return Ok(());
        }
        self.socket
            .set_reuse_address(true)
            .call("setsockopt(SO_REUSEADDR)")
    }

    fn set_ip(&self, option: libc::c_int, value: libc::c_int, call: &'static str) -> Result<()> {
        set_int(self.socket.as_fd(), libc::SOL_IP, option, value).call(call)
    }

    /// Starts to connect. The stream is writable once the connection stands or has failed; then
    /// [`crate::tcp::stream::take_error`] tells which.
    pub fn connect(self, target: SocketAddr) -> Result<TcpStream> {
        match self.socket.connect(&target.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(source) => {
                return Err(SyscallError {
                    call: "connect(2)",
                    source,
                });
            }
        }
        Ok(self.socket.into())
    }

    /// Fixes the backend of a UDP socket: it receives from nobody else from now on. Nothing is sent.
    pub fn connect_udp(self, target: SocketAddr) -> Result<UdpSocket> {
        self.socket.connect(&target.into()).call("connect(2)")?;
        Ok(self.socket.into())
    }
}

impl AsFd for UpstreamSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether the connection stands already, as it does right after connect(2) to this host.
pub fn is_connected(socket: impl AsFd) -> bool {
    SockRef::from(&socket).peer_addr().is_ok()
}

/// The address a socket really has (getsockname(2)).
pub fn local_addr(socket: impl AsFd) -> Result<SocketAddr> {
    let addr = SockRef::from(&socket).local_addr().call("getsockname(2)")?;
    addr.as_socket()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        .call("getsockname(2)")
}

/// The ports that connect(2) chooses from (ip(7), `ip_local_port_range`), in the network namespace of
/// the calling thread.
pub fn ephemeral_ports() -> Result<RangeInclusive<u16>> {
    let text = match fs::read_to_string(PORT_RANGE) {
        // A sandbox without /proc/sys (ProcSubset=pid).
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(USUAL_PORT_RANGE),
        text => text.call(PORT_RANGE)?,
    };
    let mut ports = text.split_whitespace().map(str::parse);
    match (ports.next(), ports.next()) {
        (Some(Ok(first)), Some(Ok(last))) => Ok(first..=last),
        _ => Err(io::Error::from(io::ErrorKind::InvalidData)).call(PORT_RANGE),
    }
}

/// The kernel's default (ip(7)). Wrong, it costs a second try: a port outside of the true range can't be chosen at
/// connect, and is bound by its number then.
const USUAL_PORT_RANGE: RangeInclusive<u16> = 32_768..=60_999;
const PORT_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// From `linux/in.h`; the libc crate does not have it yet.
const IP_LOCAL_PORT_RANGE: libc::c_int = 51;
