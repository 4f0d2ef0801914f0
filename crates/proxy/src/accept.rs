//! The first stage: who is at the other end, and may it send headers at all?

use std::os::fd::AsFd;

use peername_sys::event::readiness::register_stream;
use tokio::net::TcpStream;

use crate::addr::{LocalAddr, PeerAddr};
use crate::config::Config;
use crate::outcome::Failure;
use crate::server::Incoming;

/// A connection of a trusted peer, from which nothing has been read.
#[derive(Debug)]
pub struct Accepted {
    pub(crate) stream: TcpStream,
    /// Who is really at the other end.
    pub peer: PeerAddr,
    /// The address listened on.
    pub listener: LocalAddr,
}

impl Accepted {
    /// Decides on the real peer address, before a byte is read or waited for.
    ///
    /// # Errors
    ///
    /// [`Failure::Untrusted`], and [`Failure::Local`] when the socket can't be watched.
    pub(crate) fn admit(incoming: Incoming, config: &Config) -> Result<Self, Failure> {
        let Incoming {
            stream,
            peer,
            listener,
        } = incoming;
        if !config.trust.contains(peer.ip()) {
            return Err(refuse(&stream, Failure::Untrusted));
        }
        Ok(Self {
            stream: register_stream(stream).map_err(Failure::Local)?,
            peer,
            listener,
        })
    }
}

/// A refusal is an RST: the peer can tell it from an answer, and nothing lingers here. Only who could not be watched may
/// get a FIN: that socket is gone with the error.
pub(crate) fn refuse(stream: impl AsFd, failure: Failure) -> Failure {
    let _ = peername_sys::tcp::stream::reset_on_close(stream);
    failure
}
