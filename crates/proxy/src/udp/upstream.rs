//! A session's socket: connected to the backend, from the client's own address.

use std::net::{SocketAddr, UdpSocket};

use peername_sys::upstream::Upstream;

use crate::config;
use crate::connect::{Begin, instead_of, prepare, verify};
use crate::counters::Counters;
use crate::outcome::Failure;
use crate::permit::Permit;

/// Opens a socket from the permit's source to its target.
///
/// The client's address and port belong to one socket of this host at a time: the second session that
/// wants them, or another program's socket, is a collision.
pub(crate) fn open(
    permit: &Permit,
    config: &config::Upstream,
    counters: &Counters,
) -> Result<UdpSocket, Failure> {
    let target = permit.target().0;
    match connect(target, permit.bind_to(), config) {
        Err(Begin::Taken(taken)) => {
            let Some(source) = permit.bind_to() else {
                return Err(Failure::PortTaken(taken));
            };
            let other = instead_of(source, taken, config, counters)?;
            connect(target, Some(other), config).map_err(Begin::into_failure)
        }
        result => result.map_err(Begin::into_failure),
    }
}

fn connect(
    target: SocketAddr,
    source: Option<SocketAddr>,
    config: &config::Upstream,
) -> Result<UdpSocket, Begin> {
    let socket =
        Upstream::datagram(target).map_err(|failed| Begin::Other(Failure::Local(failed)))?;
    prepare(&socket, source, config)?;
    let socket = socket
        .connect_datagram(target)
        .map_err(|failed| Begin::Other(Failure::Connect(failed.source)))?;
    if let Some(wanted) = source {
        verify(&socket, wanted).map_err(Begin::Other)?;
    }
    Ok(socket)
}
