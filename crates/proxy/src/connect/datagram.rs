//! A UDP session's socket: connected to the backend, from the client's own address.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use peername_sys::socket::upstream::UpstreamSocket;

use super::Connector;
use super::attempt::{ConnectError, verify};
use crate::outcome::Failure;
use crate::policy::permit::Permit;

impl Connector {
    /// Opens a UDP socket from the permit's source to its target.
    ///
    /// The client's address and port belong to one socket of this host at a time: the second session
    /// that wants them, or another program's socket, is a collision.
    pub(crate) fn datagram(&self, permit: &Permit) -> Result<UdpSocket, Failure> {
        let target = permit.target().0;
        let Some(source) = permit.bind_to() else {
            return self
                .datagram_from(None, target)
                .map_err(ConnectError::into_failure);
        };
        match self.datagram_from(Some(source), target) {
            Err(ConnectError::Taken(taken)) => {
                let other = self.instead_of(source, permit, taken)?;
                self.datagram_from(Some(other), target)
                    .map_err(ConnectError::into_failure)
            }
            result => result.map_err(ConnectError::into_failure),
        }
    }

    fn datagram_from(
        &self,
        source: Option<SocketAddr>,
        target: SocketAddr,
    ) -> Result<UdpSocket, ConnectError> {
        let socket = UpstreamSocket::new_udp(target).map_err(ConnectError::local)?;
        self.mark(&socket).map_err(ConnectError::local)?;
        if let Some(source) = source {
            bind(&socket, source)?;
        }
        let socket = socket
            .connect_udp(target)
            .map_err(|failed| ConnectError::refused(target, failed))?;
        if let Some(wanted) = source {
            verify(&socket, wanted).map_err(ConnectError::Other)?;
        }
        Ok(socket)
    }
}

fn bind(socket: &UpstreamSocket, source: SocketAddr) -> Result<(), ConnectError> {
    socket.set_transparent().map_err(ConnectError::local)?;
    let bound = match source.port() {
        0 => socket.bind_any_port(source.ip()),
        _ => socket.bind(source),
    };
    bound.map_err(|failed| match failed.source.kind() {
        ErrorKind::AddrInUse => ConnectError::Taken(failed),
        _ => ConnectError::local(failed),
    })
}
