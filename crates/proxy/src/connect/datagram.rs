//! Opens the socket of a UDP session: connected to the backend, from the client's own address.

use std::net::{SocketAddr, UdpSocket};

use peername_server::addr::Target;
use peername_sys::Transport;
use peername_sys::socket::upstream::{UpstreamSocket, local_addr};

use super::Connector;
use super::attempt::{ConnectError, bind, verify_source};
use super::server_side::verify_emitted;
use crate::backend::Backend;
use crate::outcome::Failure;
use crate::policy::permit::Permit;

impl Connector {
    /// Opens a UDP socket from the permit's source to its target.
    ///
    /// A client's address and port can belong to one socket of this host at a time: a second session with the same ones,
    /// or another program's socket, is a collision.
    ///
    /// # Errors
    ///
    /// As [`ConnectedPair::open`](super::ConnectedPair::open), but there is no timeout, and want of a port is
    /// [`Failure::Local`].
    pub(crate) fn open_udp(&self, permit: &Permit) -> Result<UdpSocket, Failure> {
        let target = permit.target().0;
        let Some(source) = permit.bind_to() else {
            return self
                .open_udp_from(None, target)
                .map_err(ConnectError::into_failure);
        };
        let opened = match self.open_udp_from(Some(source), target) {
            Err(ConnectError::PortTaken(taken)) => {
                let replacement = self.resolve_collision(source, permit, taken)?;
                self.open_udp_from(Some(replacement), target)
            }
            opened => opened,
        };
        let socket = opened.map_err(ConnectError::into_failure)?;
        self.verify_udp(&socket, target, permit.is_target_on_this_host())?;
        Ok(socket)
    }

    /// Verifies by a probe that datagrams leave with the client's address. A lookup of the backend's socket would not do: a UDP
    /// server's socket is not connected, so the kernel does not show its peer. A session with a backend on another host is
    /// verified only if the proxy sets a mark, because the probe costs a packet for each session.
    ///
    /// # Errors
    ///
    /// [`Failure::SourceTranslated`]; [`Failure::Local`]: getsockname(2) failed.
    pub(crate) fn verify_udp(
        &self,
        socket: &UdpSocket,
        target: SocketAddr,
        is_on_this_host: bool,
    ) -> Result<(), Failure> {
        if !is_on_this_host && self.config.mark.is_none() {
            return Ok(());
        }
        let client = local_addr(socket).map_err(Failure::Local)?;
        verify_emitted(
            Backend::new(target, Transport::Udp),
            self.config.mark,
            client,
        )
    }

    fn open_udp_from(
        &self,
        source: Option<SocketAddr>,
        target: SocketAddr,
    ) -> Result<UdpSocket, ConnectError> {
        let socket = UpstreamSocket::new_udp(target).map_err(ConnectError::local)?;
        socket
            .set_mark(self.config.mark)
            .map_err(ConnectError::local)?;
        if let Some(source) = source {
            socket.set_transparent().map_err(ConnectError::local)?;
            bind(&socket, source).map_err(ConnectError::from_bind)?;
        }
        let socket = socket
            .connect_udp(target)
            .map_err(|error| Failure::from_udp_connect(Target(target), error))
            .map_err(ConnectError::Other)?;
        if let Some(wanted) = source {
            verify_source(&socket, wanted).map_err(ConnectError::Other)?;
        }
        Ok(socket)
    }
}
