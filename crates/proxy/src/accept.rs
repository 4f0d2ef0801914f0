//! The first stage: who is at the other end, and may it send headers at all?

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::addr::{LocalAddr, PeerAddr};
use crate::config::{Config, HeaderLimits};
use crate::outcome::Failure;
use crate::pending::{Pending, Place};
use crate::server::Incoming;

/// A connection of a trusted peer, from which nothing has been read.
#[derive(Debug)]
pub struct Accepted {
    pub(crate) stream: TcpStream,
    pub(crate) deadline: Instant,
    /// Given up with the header.
    pub(crate) place: Place,
    /// Who is really at the other end.
    pub peer: PeerAddr,
    /// The address listened on.
    pub listener: LocalAddr,
}

impl Accepted {
    /// Decides on the real peer address, before a byte is read.
    ///
    /// # Errors
    ///
    /// [`Failure::Untrusted`], [`Failure::TooManyPending`].
    pub(crate) fn admit(
        incoming: Incoming,
        config: &Config,
        pending: &Arc<Pending>,
    ) -> Result<Self, Failure> {
        let Incoming {
            stream,
            peer,
            listener,
            ..
        } = incoming;
        let HeaderLimits { timeout, .. } = config.header;
        if !config.trust.contains(peer.ip()) {
            return Err(refuse(&stream, Failure::Untrusted));
        }
        let Some(place) = pending.enter(peer.ip(), &config.header) else {
            return Err(refuse(&stream, Failure::TooManyPending));
        };
        Ok(Self {
            stream,
            deadline: Instant::now() + timeout,
            place,
            peer,
            listener,
        })
    }
}

/// Every refusal is an RST: the peer can tell it from an answer, and nothing lingers here.
pub(crate) fn refuse(stream: &TcpStream, failure: Failure) -> Failure {
    let _ = peername_sys::stream::reset_on_close(stream);
    failure
}
