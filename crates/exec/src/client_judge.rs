//! Decides which clients may connect, beyond the trust in their balancers.
//!
//! Lists of clients are long and change, so they are not in the shared table. Only the supervisor's process has them: the
//! library parks each connection at the header waiter ([`Policy::judged_by_waiter`](peername_identity::Policy::judged_by_waiter)).

use std::fmt::Debug;
use std::net::SocketAddr;

use peername_identity::Counter;

/// Decides about clients. It is called by the supervisor's only thread, which all of the program's accepts wait for.
pub trait ClientJudge: Debug {
    /// Decides about a connection from `peer` that begins with `header`. Without a header the peer is the client.
    ///
    /// # Errors
    ///
    /// The client may not connect.
    fn judge(&self, peer: SocketAddr, header: Option<&[u8]>) -> Result<(), DeniedClient>;
}

/// A client that may not connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeniedClient {
    /// Its address, or the balancer's if the header names no client.
    pub client: SocketAddr,
    /// The reason, one of those of [`Counter::is_of_client`].
    pub why: Counter,
}
