//! Which connections and sessions the lists of clients are applied to, and by which address.

use peername_server::addr::{ClaimedSource, PeerAddr, canonical};

/// The client that the lists are applied to. `None` where the balancer speaks for itself: it claims no source, or that of its
/// own connection, as its health checks do with version 1, which has no LOCAL.
pub fn judged_client(claim: Option<ClaimedSource>, peer: PeerAddr) -> Option<ClaimedSource> {
    claim.filter(|claim| canonical(peer.0) != claim.0)
}
