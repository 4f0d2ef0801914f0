//! The interface between the acceptor and a service: an accepted connection, and the trait that serves it.

use std::net::TcpStream;
use std::sync::Arc;

use super::connections::ConnectionEntry;
use crate::addr::{LocalAddr, PeerAddr};
use crate::listeners::ListenerId;

/// Serves accepted connections.
pub trait Serve: Send + Sync + 'static {
    /// The settings that a connection is served with, such as the rules of its listener.
    type Context: Clone + Send + 'static;

    /// Returns the context of a connection of this listener, at the time of accept(2): a reload that closes the
    /// listener may be over before the connection is served.
    fn context(&self, listener: ListenerId) -> Self::Context;

    /// Whether the worker goes on without this listener once its socket does not listen any more. By default, the worker fails.
    fn can_lose(&self, _listener: ListenerId) -> bool {
        false
    }

    /// Serves one connection to its end, and sets in `entry` what becomes known of it. An open connection takes little more
    /// memory than this future, so state that is needed only at the start should be boxed.
    fn serve(
        self: Arc<Self>,
        connection: Incoming,
        entry: Arc<ConnectionEntry>,
        context: Self::Context,
    ) -> impl Future<Output = ()> + Send + 'static;
}

/// A connection as accept(2) returned it.
#[derive(Debug)]
pub struct Incoming {
    /// The socket: non-blocking, and not registered with any runtime.
    pub stream: TcpStream,
    /// The real peer.
    pub peer: PeerAddr,
    /// The address listened on; where a TPROXY rule redirected the connection, its original destination.
    pub local: LocalAddr,
    /// The address that the listening socket is bound to: one of few, so that metrics can be kept by it.
    pub bound_to: LocalAddr,
}
