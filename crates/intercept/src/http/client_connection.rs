//! Whose connection it is.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use peername_server::addr::{LocalAddr, PeerAddr};

use crate::http::stall_monitor::Exchanges;
use crate::request::id::Id;
use crate::upstream::Own;

/// The one at the other end, as far as is known.
#[derive(Debug)]
pub(crate) struct Client {
    /// The connection's name.
    pub(crate) id: Id,
    /// Who is really there.
    pub(crate) peer: PeerAddr,
    /// On whose behalf: what the PROXY header of a trusted peer says, else the peer.
    pub(crate) client: SocketAddr,
    /// Where the connection came in.
    pub(crate) listener: LocalAddr,
    /// What it has asked for and has not got yet.
    pub(crate) exchanges: Exchanges,
    /// Its connections to origins.
    pub(crate) own: Arc<Own>,
    /// By which name it came last, where there are names.
    pub(crate) user: Mutex<Option<Arc<str>>>,
}

impl Client {
    /// What it asks for from now on, it asks for by this name.
    pub(crate) fn is_user(&self, user: Option<Arc<str>>) {
        if user.is_some() {
            *self.user.lock().unwrap_or_else(PoisonError::into_inner) = user;
        }
    }

    pub(crate) fn user(&self) -> Option<Arc<str>> {
        self.user
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
