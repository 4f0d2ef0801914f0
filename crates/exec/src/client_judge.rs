//! Decides which clients may connect, beyond the trust in their balancers.
//!
//! Lists of clients are long and change, so they are not in the shared table. Only the supervisor's process has them: the
//! library parks each connection at the header waiter
//! ([`Policy::judged_by_waiter`](peername_identity::Policy::judged_by_waiter)).

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use peername_identity::Counter;
use peername_sys::socket::upstream::local_addr;

/// Decides about clients. It is called by the supervisor's only thread, which all of the program's accepts wait for.
pub trait ClientJudge: Debug {
    /// Prepares the judge in the supervisor's process, before the first connection.
    fn prepare(&self);

    /// Decides about a connection that begins with `header`. Without a header the peer is the client.
    fn judge(&self, ends: ConnectionEnds, header: Option<&[u8]>) -> Result<(), DeniedClient>;

    /// Decides again about a connection whose header was judged before, because the lists may have changed. `client` is the one
    /// that the header names; `None` if it names none, or the peer.
    fn judge_again(
        &self,
        ends: ConnectionEnds,
        client: Option<SocketAddr>,
    ) -> Result<(), DeniedClient>;

    /// Whether a list could not be read when it was last tried, so that the previous lists are in force.
    fn has_stale_lists(&self) -> bool;
}

/// The addresses of a connection, as the kernel has them.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionEnds {
    /// The peer.
    pub peer: SocketAddr,
    /// The address of this host that the peer has connected to; `None` if it can't be read.
    pub local: Option<SocketAddr>,
}

impl ConnectionEnds {
    /// Reads the local address of a connection from `peer`.
    pub(crate) fn from_connection(connection: BorrowedFd<'_>, peer: SocketAddr) -> Self {
        let local = local_addr(connection).ok();
        Self { peer, local }
    }
}

/// A client that may not connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeniedClient {
    /// The client's address, or the balancer's if the header names no client.
    pub client: SocketAddr,
    /// The reason, one of those of [`Counter::is_client_refusal`].
    pub reason: Counter,
}
