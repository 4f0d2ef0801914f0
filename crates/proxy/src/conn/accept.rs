//! The first stage: checks that the peer is trusted to send headers.

use std::os::fd::AsFd;

use peername_server::addr::{LocalAddr, PeerAddr};
use peername_server::workers::Incoming;
use peername_sys::event::readiness::register_stream;
use tokio::net::TcpStream;

use crate::config::Config;
use crate::outcome::Failure;

/// A connection of a trusted peer, from which nothing has been read.
#[derive(Debug)]
pub struct AcceptedConn {
    pub(crate) stream: TcpStream,
    /// The real peer.
    pub peer: PeerAddr,
    /// The address listened on.
    pub local: LocalAddr,
}

impl AcceptedConn {
    /// Decides on the real peer address, before a byte is read or waited for.
    ///
    /// # Errors
    ///
    /// [`Failure::Untrusted`], and [`Failure::Local`] when the socket can't be registered with the runtime.
    pub(crate) fn admit(incoming: Incoming, config: &Config) -> Result<Self, Failure> {
        let Incoming {
            stream,
            peer,
            local,
            ..
        } = incoming;
        if !config.trust.contains(peer.ip()) {
            return Err(refuse(&stream, Failure::Untrusted));
        }
        Ok(Self {
            stream: register_stream(stream).map_err(Failure::Local)?,
            peer,
            local,
        })
    }
}

/// Makes the close of a refused connection an RST: the peer can tell the RST from a regular close, and the socket does
/// not linger. A socket that could not be registered with the runtime is closed already, maybe with a FIN.
pub(crate) fn refuse(stream: impl AsFd, failure: Failure) -> Failure {
    let _ = peername_sys::tcp::stream::reset_on_close(stream);
    failure
}
