//! The client of a connection.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use peername_server::addr::PeerAddr;

use super::id::Id;

/// The client of a connection, and the peer that connected for it.
#[derive(Debug)]
pub(crate) struct ClientInfo {
    /// The other end of the socket.
    pub(crate) peer: PeerAddr,
    /// The true client: the source that the PROXY header of a trusted peer claims, else the peer.
    pub(crate) addr: SocketAddr,
    /// The user who opened the connection's tunnel, if `--proxy-auth` requires one. Outside of a tunnel each request has its own.
    tunnel_user: OnceLock<Arc<str>>,
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
            tunnel_user: OnceLock::new(),
            text: ClientText {
                id: id.to_string().into(),
                peer: peer.to_string().into(),
                addr: addr.to_string().into(),
            },
        }
    }

    /// Attributes the requests inside the tunnel that is now opened to this user.
    pub(crate) fn set_tunnel_user(&self, user: Option<Arc<str>>) {
        if let Some(user) = user {
            self.tunnel_user.get_or_init(|| user);
        }
    }

    pub(crate) fn tunnel_user(&self) -> Option<Arc<str>> {
        self.tunnel_user.get().cloned()
    }
}
