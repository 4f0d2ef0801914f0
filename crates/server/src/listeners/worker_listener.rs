//! A worker's listening socket, and its id.

use std::net::{self, SocketAddr};
use std::sync::Arc;

use crate::addr::LocalAddr;

/// Identifies a listener, in all workers. Never reused within a process: a closed listener may still be draining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// One worker's socket on an address.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) id: ListenerId,
    pub(crate) addr: LocalAddr,
    pub(crate) socket: Arc<net::TcpListener>,
    /// Whether another process holds the socket too, and serves its accept backlog after us.
    pub(crate) is_shared: bool,
    /// Whether TPROXY rules bring connections to other destinations.
    pub(crate) is_transparent: bool,
}

/// An address to listen on, and the id its listener gets.
pub type ListenAddr = (ListenerId, SocketAddr);
