//! The client of a connection.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use peername_server::addr::PeerAddr;

use super::id::Id;

/// The client of a connection, and the peer that connected for it.
#[derive(Debug)]
pub(crate) struct ClientInfo {
    /// The other end of the socket.
    pub(crate) peer: PeerAddr,
    /// The true client: the source that the PROXY header of a trusted peer claims, else the peer.
    pub(crate) addr: SocketAddr,
    /// The user name that was verified last, if `--proxy-auth` requires one.
    user: Mutex<Option<Arc<str>>>,
    /// For the audit lines of its requests.
    pub(crate) text: ClientText,
}

/// The fields that all audit lines of a connection have, formatted once.
#[derive(Debug)]
pub(crate) struct ClientText {
    /// The connection's id in logs.
    pub(crate) id: Box<str>,
    pub(crate) peer: Box<str>,
    pub(crate) addr: Box<str>,
}

impl ClientInfo {
    pub(crate) fn new(id: Id, peer: PeerAddr, addr: SocketAddr) -> Self {
        Self {
            peer,
            addr,
            user: Mutex::default(),
            text: ClientText {
                id: id.to_string().into(),
                peer: peer.to_string().into(),
                addr: addr.to_string().into(),
            },
        }
    }

    /// Attributes requests to this user from now on; `None` changes nothing.
    pub(crate) fn set_user(&self, user: Option<Arc<str>>) {
        if user.is_some() {
            *self.user.lock() = user;
        }
    }

    pub(crate) fn user(&self) -> Option<Arc<str>> {
        self.user.lock().clone()
    }
}
