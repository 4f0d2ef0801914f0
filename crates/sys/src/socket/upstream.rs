//! Upstream sockets: they connect to a backend from the client's address (spoof).

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Protocol, SockRef, Socket, Type};

use crate::socket::{self, set_int, transparent};
use crate::{NameCall, Result};

/// A socket that is to connect to a backend. It is opened, marked, bound to a source, then connected.
#[derive(Debug)]
pub struct UpstreamSocket {
    socket: Socket,
    v6: bool,
    /// Whether other sockets may be bound to the same port (SO_REUSEADDR).
    shares_port: bool,
}

impl UpstreamSocket {
    /// Opens a non-blocking TCP socket of the target's family.
    pub fn new_tcp(target: SocketAddr) -> Result<Self> {
        Ok(Self {
            shares_port: true,
            ..Self::open(target, Type::STREAM, Protocol::TCP)?
        })
    }

    /// Like [`UpstreamSocket::new_tcp`], for a port that no other socket may have at the same address.
    pub fn new_tcp_exclusive_port(target: SocketAddr) -> Result<Self> {
        Self::open(target, Type::STREAM, Protocol::TCP)
    }

    /// Opens a non-blocking UDP socket of the target's family, for [`UpstreamSocket::connect_udp`].
    ///
    /// The socket does not share its port: if two UDP sockets shared a port (SO_REUSEADDR), they could have the same
    /// 4-tuple, and one would get the other's datagrams. EADDRINUSE from [`UpstreamSocket::bind`] means that
    /// another socket has the port, at this address or at the wildcard address.
    pub fn new_udp(target: SocketAddr) -> Result<Self> {
        Self::open(target, Type::DGRAM, Protocol::UDP)
    }

    fn open(target: SocketAddr, kind: Type, protocol: Protocol) -> Result<Self> {
        Ok(Self {
            socket: socket::open(target, kind, protocol)?,
            v6: target.is_ipv6(),
            shares_port: false,
        })
    }

    /// Sets the firewall mark (SO_MARK), if there is one, for policy routing. Needs CAP_NET_ADMIN, or CAP_NET_RAW since Linux
    /// 5.17.
    pub fn set_mark(&self, mark: Option<NonZeroU32>) -> Result<()> {
        mark.map_or(Ok(()), |mark| socket::set_mark(self, mark.get()))
    }

    /// Allows the socket to be bound to a foreign address: see [`transparent::set_transparent`].
    pub fn set_transparent(&self) -> Result<()> {
        transparent::set_transparent(&self.socket, self.v6)
    }

    /// Binds to the interface with this index (SO_BINDTOIFINDEX, since Linux 5.0). Needs no capability since Linux 5.7.
    ///
    /// # Errors
    ///
    /// ENODEV without the interface; EPERM if the socket is bound to another one, as in a VRF, without CAP_NET_RAW.
    pub fn bind_interface(&self, index: u32) -> Result<()> {
        if socket::bound_interface(self) == index {
            return Ok(());
        }
        let index = libc::c_int::try_from(index).unwrap_or_default();
        let option = libc::SO_BINDTOIFINDEX;
        set_int(self.as_fd(), libc::SOL_SOCKET, option, index).call("setsockopt(SO_BINDTOIFINDEX)")
    }

    /// Binds to `source`, address and port. SO_REUSEADDR allows the port while an older connection with
    /// it is in TIME_WAIT. A port below 1024 needs CAP_NET_BIND_SERVICE.
    ///
    /// While the socket is open, connect(2) does not choose this port for any other socket of the network namespace,
    /// whatever the addresses are: see [`UpstreamSocket::bind_port_at_connect`].
    ///
    /// # Errors
    ///
    /// EADDRINUSE when another program's socket has the port; EADDRNOTAVAIL for a foreign address of a socket that is not
    /// transparent; EACCES for a privileged port.
    pub fn bind(&self, source: SocketAddr) -> Result<()> {
        self.reuse_address()?;
        self.socket.bind(&source.into()).call("bind(2)")
    }

    /// Binds to the address and leaves the port to connect(2), which chooses one that makes the
    /// whole 4-tuple unique (IP_BIND_ADDRESS_NO_PORT, since Linux 4.2).
    ///
    /// # Errors
    ///
    /// EADDRNOTAVAIL for a foreign address of a socket that is not transparent.
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

    /// Like [`UpstreamSocket::bind_any_port`], with a single port to choose from, which must be one of
    /// [`ephemeral_ports`] (IP_LOCAL_PORT_RANGE, since Linux 6.3).
    ///
    /// connect(2) never chooses a port that another socket has bound by number. If clients' ports were bound by number, the
    /// host would soon be unable to connect anywhere. A port that connect(2) has chosen stays shared.
    ///
    /// # Errors
    ///
    /// ENOPROTOOPT before Linux 6.3; those of [`UpstreamSocket::bind_any_port`].
    pub fn bind_port_at_connect(&self, source: SocketAddr) -> Result<()> {
        let port = libc::c_int::from(source.port());
        // The lowest port, and the highest one in the upper half.
        let range = port | port << 16;
        self.set_ip(
            IP_LOCAL_PORT_RANGE,
            range,
            "setsockopt(IP_LOCAL_PORT_RANGE)",
        )?;
        self.bind_any_port(source.ip())
    }

    /// Sets SO_REUSEADDR if the socket shares its port. All those sockets need the option, because a socket without it excludes
    /// the others from its port.
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

    /// Starts to connect. The stream is writable once it is connected or has failed; then
    /// [`crate::tcp::stream::take_error`] returns the error, if any.
    ///
    /// # Errors
    ///
    /// EADDRNOTAVAIL when the 4-tuple is in use, perhaps by a connection that is closing; ENETUNREACH; EPERM from a
    /// firewall; else those of connect(2).
    pub fn connect(self, target: SocketAddr) -> Result<TcpStream> {
        match self.socket.connect(&target.into()).call("connect(2)") {
            Err(error) if error.errno() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(self.socket.into()),
        }
    }

    /// Connects a UDP socket to the backend: it receives from no other peer from now on. Nothing is sent.
    ///
    /// # Errors
    ///
    /// ENETUNREACH and EHOSTUNREACH without a route; else those of connect(2).
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

/// Whether the socket is connected, as a connection to this host is right after connect(2).
pub fn is_connected(socket: impl AsFd) -> bool {
    SockRef::from(&socket).peer_addr().is_ok()
}

/// The local address of a socket (getsockname(2)).
///
/// # Errors
///
/// [`io::ErrorKind::InvalidData`] for a socket that is not an IP socket.
pub fn local_addr(socket: impl AsFd) -> Result<SocketAddr> {
    let addr = SockRef::from(&socket).local_addr().call("getsockname(2)")?;
    addr.as_socket()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        .call("getsockname(2)")
}

/// The ephemeral ports: those that connect(2) chooses from (ip(7), `ip_local_port_range`), in the network namespace of
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

/// The kernel's default (ip(7)). If it is wrong, it costs a retry: a port outside of the true range can't be chosen at
/// connect, and is then bound by number.
const USUAL_PORT_RANGE: RangeInclusive<u16> = 32_768..=60_999;
const PORT_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// From `linux/in.h`; missing in the libc crate.
const IP_LOCAL_PORT_RANGE: libc::c_int = 51;
