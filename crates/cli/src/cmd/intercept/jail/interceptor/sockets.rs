//! The sockets of a jail, which its process opens and passes to the interceptor.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use peername_jail::network::DNS_PORT;
use peername_sys::ipc::fd_passing;
use peername_sys::ipc::inherited_socket::InheritedSocket;

/// Sends the jail's sockets to the interceptor.
///
/// # Errors
///
/// EPIPE: the interceptor has exited.
pub(in crate::cmd::intercept::jail) fn send_sockets(
    channel: &OwnedFd,
    sockets: &[OwnedFd],
) -> peername_sys::Result<()> {
    for chunk in sockets.chunks(fd_passing::MAX_FDS) {
        let fds: Vec<_> = chunk.iter().map(AsFd::as_fd).collect();
        fd_passing::send_message(channel, MORE, &fds)?;
    }
    fd_passing::send_message(channel, LAST, &[])
}

/// Receives the jail's sockets; `None` if the jail could not be made.
pub(super) fn receive_sockets(channel: &OwnedFd) -> peername_sys::Result<Option<Vec<OwnedFd>>> {
    let mut sockets = Vec::new();
    loop {
        let mut bytes = [0; 1];
        let (length, fds) = fd_passing::receive_message(channel, &mut bytes)?;
        sockets.extend(fds);
        match bytes.get(..length) {
            Some(MORE) => {}
            Some(LAST) => return Ok(Some(sockets)),
            _ => return Ok(None),
        }
    }
}

/// The sockets of the jail, by their use.
pub(super) struct JailSockets {
    pub(super) listeners: Vec<InheritedSocket>,
    /// The sockets of the name server.
    pub(super) names_udp: Vec<OwnedFd>,
    pub(super) names_tcp: Vec<OwnedFd>,
}

impl JailSockets {
    pub(super) fn sort(sockets: Vec<OwnedFd>) -> anyhow::Result<Self> {
        let mut sorted = Self {
            listeners: Vec::new(),
            names_udp: Vec::new(),
            names_tcp: Vec::new(),
        };
        for socket in sockets {
            let socket = InheritedSocket::new(socket, "jail".to_owned())?;
            match (socket.addr.port(), socket.is_stream) {
                (DNS_PORT, true) => sorted.names_tcp.push(socket.try_clone()?),
                (DNS_PORT, false) => sorted.names_udp.push(socket.try_clone()?),
                _ => sorted.listeners.push(socket),
            }
        }
        Ok(sorted)
    }

    /// Duplicates of the listeners, with their ports.
    pub(super) fn by_port(&self) -> peername_sys::Result<Vec<(u16, OwnedFd)>> {
        self.listeners
            .iter()
            .map(|socket| Ok((socket.addr.port(), socket.try_clone()?)))
            .collect()
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|socket| socket.addr).collect()
    }

    pub(super) fn has_v6(&self) -> bool {
        self.listeners.iter().any(|socket| socket.addr.is_ipv6())
    }
}

/// A message with sockets; [`LAST`] follows the last one.
const MORE: &[u8] = b"+";
const LAST: &[u8] = b".";
