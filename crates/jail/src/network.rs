//! The namespaces of the jail, and the sockets that are opened in its network.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use peername_sys::netlink::make_every_address_local;
use peername_sys::process::namespace::{
    Unshared, allow_unprivileged_ports, unshare_with_new_user_namespace,
};
use peername_sys::socket::BindOptions;
use peername_sys::tcp::listener;
use peername_sys::udp;
use peername_sys::{Result, SyscallError};

use crate::JailError;
use crate::forbidden::explain;

/// The port of the name server, on which no other listener is opened.
pub const DNS_PORT: u16 = 53;

/// Whether this process is in a jail already: there, every address is local, and the kernel chooses the destination's address
/// as the source, too.
#[must_use]
pub fn is_jailed() -> bool {
    // Of TEST-NET-1 (RFC 5737): no host has this address.
    let unassigned = Ipv4Addr::new(192, 0, 2, 1);
    source_address_to(unassigned).is_ok_and(|source| source == unassigned)
}

/// Returns the source address that the kernel chooses for a destination. Nothing is sent.
fn source_address_to(destination: Ipv4Addr) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((destination, DISCARD_PORT))?;
    Ok(socket.local_addr()?.ip())
}

/// Assigns each port an alternate, at which the jail listens, too: connections to other hosts arrive there once a server of the
/// program has taken the port itself.
#[must_use]
pub fn alternate_ports(ports: &BTreeSet<u16>) -> BTreeMap<u16, u16> {
    let unused = (1..).filter(|port| *port != DNS_PORT && !ports.contains(port));
    ports.iter().copied().zip(unused).collect()
}

/// Moves this process, which must have one thread only, into the jail's namespaces, and opens listening sockets on every
/// address there: TCP on these ports and their alternates ([`alternate_ports`]), and the name server's, TCP and UDP on
/// [`DNS_PORT`].
///
/// The sockets stay in that network wherever they are passed to, and each is bound to `0.0.0.0` or `[::]`; where the host has
/// no IPv6, there are none of the latter.
pub fn enter(ports: &BTreeSet<u16>) -> Result<Vec<OwnedFd>, JailError> {
    let is_nested = is_jailed();
    let explain = |failed| explain(failed, is_nested);
    unshare_with_new_user_namespace(Unshared::MountsAndNetwork).map_err(explain)?;
    // Some hosts create the namespace and then refuse everything in it.
    let has_v6 = make_every_address_local(&JAIL_ADDRESSES).map_err(explain)?;
    // For servers of the program. An error is ignored: in containers /proc/sys may be read-only, and most programs bind no port
    // below 1024.
    let _ = allow_unprivileged_ports();
    let v4 = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let everywhere = [Some(v4), has_v6.then_some(Ipv6Addr::UNSPECIFIED.into())];
    let alternates = alternate_ports(ports);
    let mut sockets = Vec::new();
    for ip in everywhere.into_iter().flatten() {
        for &port in ports.iter().chain(alternates.values()).chain([&DNS_PORT]) {
            let opened = listener::listen((ip, port).into(), BindOptions::ALONE);
            sockets.push(opened.map_err(|failed| listen_error(port, failed))?.into());
        }
        let opened = listen_udp((ip, DNS_PORT).into());
        sockets.push(opened.map_err(|failed| listen_error(DNS_PORT, failed))?);
    }
    Ok(sockets)
}

fn listen_error(port: u16, failed: SyscallError) -> JailError {
    JailError::Listen { port, failed }
}

fn listen_udp(addr: SocketAddr) -> Result<OwnedFd> {
    let socket = udp::listen(addr, BindOptions::ALONE)?;
    udp::start_receiving(&socket)?;
    Ok(socket.into())
}

/// The jail's addresses beside loopback, without which programs take the jail for a host without a network: the dummy address
/// of RFC 7600, and a unique local one beside the synthetic addresses of the name server.
pub(crate) const JAIL_ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 8)),
    IpAddr::V6(Ipv6Addr::new(0xfd70, 0x6565, 0x726e, 0x616e, 0, 0, 0, 8)),
];
/// RFC 863. Any port but 0 would do.
const DISCARD_PORT: u16 = 9;
