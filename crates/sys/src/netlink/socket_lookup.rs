//! Looks up the socket that a packet would be delivered to on this host (sock_diag(7)). Needs no capability.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, netlink};

use super::handle::LOOPBACK;
use super::raw::{self, NLMSG_ERROR};
use super::sock_diag::{IPPROTO_TCP, REQUEST_LEN, SOCK_DIAG_BY_FAMILY};
use crate::socket::Transport;
use crate::{NameCall, Result};

/// A netlink socket for lookups, of the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct SocketLookup(OwnedFd);

/// The kind of the socket that a segment to `local` from `remote` would be delivered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpLookup {
    /// A connection between the two, also one in the accept backlog or one that is closing.
    Connection,
    /// What is left of a former connection between the two (TIME_WAIT).
    TimeWait,
    /// A listener.
    Listener,
    /// None, or the kernel has no lookup of TCP sockets (`CONFIG_INET_TCP_DIAG`, which may be a module): both are ENOENT.
    Missing,
}

impl From<OwnedFd> for SocketLookup {
    /// From the descriptor of a lookup.
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl From<SocketLookup> for OwnedFd {
    fn from(lookup: SocketLookup) -> Self {
        lookup.0
    }
}

impl SocketLookup {
    /// Opens a socket.
    pub fn open() -> Result<Self> {
        let socket = raw::open(Some(netlink::SOCK_DIAG)).call("socket(NETLINK_SOCK_DIAG)")?;
        Ok(Self(socket))
    }

    /// Looks up the TCP socket as the kernel does for a segment, in constant time. An IPv4 address also finds a socket of
    /// `[::]`.
    pub fn tcp(&self, local: SocketAddr, remote: SocketAddr) -> Result<TcpLookup> {
        let mut buffer = [0; 512];
        let request = exact_request(IPPROTO_TCP, local, remote);
        let answer = self.query(&request, &mut buffer)?;
        tcp_socket(answer).call("recv(SOCK_DIAG_BY_FAMILY)")
    }

    /// Whether a datagram to `local` from `remote` would be delivered to a socket that is bound to all addresses; `None` if
    /// there is no socket for it.
    pub fn is_udp_wildcard(&self, local: SocketAddr, remote: SocketAddr) -> Result<Option<bool>> {
        let mut buffer = [0; 512];
        // Source and destination are swapped (`udp_dump_one` in the kernel's `net/ipv4/udp_diag.c`).
        let request = exact_request(IPPROTO_UDP, remote, local);
        let answer = self.query(&request, &mut buffer)?;
        let socket = found_socket(answer).call("recv(SOCK_DIAG_BY_FAMILY)")?;
        let bound_ip = socket.and_then(|socket| socket.get(BOUND_IP));
        Ok(bound_ip.map(|ip| ip.iter().all(|&byte| byte == 0)))
    }

    /// Whether a listening TCP socket or a UDP socket is bound to exactly this address, rather than to a wildcard. Sockets that
    /// are bound to a device are not found.
    pub fn is_bound(&self, transport: Transport, addr: SocketAddr) -> Result<bool> {
        let mut buffer = [0; 512];
        // No connection has port 0.
        let mut peer = addr;
        peer.set_port(0);
        let request = match transport {
            Transport::Tcp => exact_request(IPPROTO_TCP, addr, peer),
            // Swapped, as in `is_udp_wildcard`.
            Transport::Udp => exact_request(IPPROTO_UDP, peer, addr),
        };
        let answer = self.query(&request, &mut buffer)?;
        let found = found_socket(answer).call("recv(SOCK_DIAG_BY_FAMILY)")?;
        // Beside `0.0.0.0`, `[::]` may be found.
        Ok(found.is_some_and(|socket| {
            socket.first() == Some(&address_family(addr))
                && socket.get(BOUND_IP) == Some(&padded_octets(addr.ip()))
        }))
    }

    fn query<'b>(&self, request: &[u8; REQUEST_LEN], answer: &'b mut [u8]) -> Result<&'b [u8]> {
        let request = raw::request(SOCK_DIAG_BY_FAMILY, request);
        raw::send_request(&self.0, &request).call("send(SOCK_DIAG_BY_FAMILY)")?;
        raw::receive(&self.0, answer).call("recv(SOCK_DIAG_BY_FAMILY)")
    }
}

/// The socket in an answer, a `struct inet_diag_msg`; `None` if there is none.
fn found_socket(answer: &[u8]) -> io::Result<Option<&[u8]>> {
    let (message, _) = raw::split_first(answer).ok_or(ErrorKind::InvalidData)?;
    if message.kind != NLMSG_ERROR {
        return Ok(Some(message.body));
    }
    let error = message.error();
    match error.raw_os_error() {
        Some(libc::ENOENT) => Ok(None),
        _ => Err(error),
    }
}

fn tcp_socket(answer: &[u8]) -> io::Result<TcpLookup> {
    let Some(socket) = found_socket(answer)? else {
        return Ok(TcpLookup::Missing);
    };
    Ok(match socket.get(STATE) {
        Some(&LISTEN) => TcpLookup::Listener,
        Some(&TIME_WAIT) => TcpLookup::TimeWait,
        Some(_) => TcpLookup::Connection,
        None => return Err(ErrorKind::InvalidData.into()),
    })
}

/// `struct inet_diag_req_v2` (linux/inet_diag.h) with a complete `struct inet_diag_sockid`.
fn exact_request(protocol: u8, local: SocketAddr, remote: SocketAddr) -> [u8; REQUEST_LEN] {
    let mut request = [0; REQUEST_LEN];
    request[0] = address_family(local);
    request[1] = protocol;
    request[4..8].copy_from_slice(&u32::MAX.to_ne_bytes()); // every state
    request[8..10].copy_from_slice(&local.port().to_be_bytes());
    request[10..12].copy_from_slice(&remote.port().to_be_bytes());
    request[12..28].copy_from_slice(&padded_octets(local.ip()));
    request[28..44].copy_from_slice(&padded_octets(remote.ip()));
    request[44..48].copy_from_slice(&interface(local).to_ne_bytes());
    request[48..56].fill(0xff); // INET_DIAG_NOCOOKIE
    request
}

/// The interface on which a connection within this host arrives: loopback, or the interface of a link-local address. It matters
/// to servers that are bound to a device.
fn interface(local: SocketAddr) -> u32 {
    match local {
        SocketAddr::V6(local) if local.scope_id() != 0 => local.scope_id(),
        _ => LOOPBACK,
    }
}

fn address_family(address: SocketAddr) -> u8 {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    u8::try_from(family.as_raw()).unwrap_or_default()
}

fn padded_octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut padded = [0; 16];
            padded[..4].copy_from_slice(&ip.octets());
            padded
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

const IPPROTO_UDP: u8 = 17;
/// Offsets in `struct inet_diag_msg` (linux/inet_diag.h): `idiag_state`, and `idiag_src`.
const STATE: usize = 1;
const BOUND_IP: std::ops::Range<usize> = 8..24;
/// TCP_TIME_WAIT and TCP_LISTEN of `net/tcp_states.h`.
const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn server_side_is_found_for_every_kind_of_listener() {
        let lookup = SocketLookup::open().unwrap();
        for (listen, to) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("0.0.0.0:0", "127.0.0.1"),
            ("[::]:0", "127.0.0.1"),
            ("[::]:0", "::1"),
        ] {
            let listener = TcpListener::bind(listen).unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = SocketAddr::new(to.parse().unwrap(), port);
            let client = TcpStream::connect(server).unwrap();
            let local = client.local_addr().unwrap();
            let find = |remote| lookup.tcp(server, remote).unwrap();
            // First in the accept backlog, then accepted, then closed by the server.
            assert_eq!(find(local), TcpLookup::Connection, "{listen}");
            let (accepted, _) = listener.accept().unwrap();
            assert_eq!(find(local), TcpLookup::Connection, "{listen}");
            drop(accepted);
            assert_eq!(find(local), TcpLookup::Connection, "{listen}");
            let unconnected = SocketAddr::new(local.ip(), 9);
            assert_eq!(find(unconnected), TcpLookup::Listener, "{listen}");
            let nothing = SocketAddr::new(server.ip(), 9);
            let found = lookup.tcp(nothing, local).unwrap();
            assert_eq!(found, TcpLookup::Missing, "{listen}");
        }
    }

    #[test]
    fn socket_is_bound_to_its_own_address_only() {
        let lookup = SocketLookup::open().unwrap();
        for bound in ["127.0.0.1", "0.0.0.0", "::1", "::"] {
            let listener = TcpListener::bind((bound, 0)).unwrap();
            let server = UdpSocket::bind((bound, 0)).unwrap();
            for (transport, port) in [
                (Transport::Tcp, listener.local_addr().unwrap().port()),
                (Transport::Udp, server.local_addr().unwrap().port()),
            ] {
                for asked in ["127.0.0.1", "0.0.0.0", "::1", "::"] {
                    let addr = SocketAddr::new(asked.parse().unwrap(), port);
                    let is_bound = lookup.is_bound(transport, addr).unwrap();
                    assert_eq!(is_bound, asked == bound, "{bound} {transport:?} {asked}");
                }
            }
        }
    }

    #[test]
    fn udp_socket_of_all_addresses_is_distinguished_from_one_of_a_single_address() {
        let lookup = SocketLookup::open().unwrap();
        for (bound, to, is_wildcard) in [
            ("127.0.0.1:0", "127.0.0.1", false),
            ("0.0.0.0:0", "127.0.0.1", true),
            ("[::]:0", "127.0.0.1", true),
            ("[::]:0", "::1", true),
            ("[::1]:0", "::1", false),
        ] {
            let server = UdpSocket::bind(bound).unwrap();
            let local = SocketAddr::new(to.parse().unwrap(), server.local_addr().unwrap().port());
            let remote = SocketAddr::new(to.parse().unwrap(), 9);
            let found = lookup.is_udp_wildcard(local, remote).unwrap();
            assert_eq!(found, Some(is_wildcard), "{bound} {to}");
            drop(server);
            assert_eq!(lookup.is_udp_wildcard(local, remote).unwrap(), None);
        }
    }
}
