//! The decisions that differ between proxy and forwarder, as a trait over which the worker is generic.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Instant;

use crate::outcome::Failure;
use crate::udp::dialect::SessionHeaders;
use crate::udp::dialect::header::DatagramHeader;
use crate::udp::drop_reason::DropReason;
use crate::udp::endpoints::{ReplyTo, SessionKey};
use crate::udp::handover::FlowState;
use crate::udp::session::Session;

/// Decides what a datagram means: [`crate::udp::UdpProxy`]'s and [`crate::udp::UdpForwarder`]'s side of a worker.
pub(crate) trait Role {
    /// Reads the header of a datagram, and decides which session it belongs to.
    fn admit(
        &mut self,
        bytes: &[u8],
        reply_to: &ReplyTo,
        now: Instant,
    ) -> Result<AdmittedDatagram, DropReason>;

    /// Opens the upstream socket of a new session.
    fn open_socket(&self, admitted: &AdmittedDatagram) -> Result<UdpSocket, Failure>;

    /// Verifies that the backend would still see the session's client as its peer.
    fn verify_source(&self, session: &Session) -> Result<(), Failure>;

    /// The backend that a new session would have by the current rules; `None` where it would not have its client's own
    /// address as source.
    fn target(&self, admitted: &AdmittedDatagram) -> Result<Option<SocketAddr>, Failure>;

    /// The headers of a new session's requests and replies.
    fn headers(&self, admitted: &AdmittedDatagram) -> Result<SessionHeaders, Failure>;

    /// Whether a reply by this path still reaches the client of `key`. Marks the client's flow as answered.
    fn accept_reply(&mut self, reply_to: &ReplyTo, key: &SessionKey, now: Instant) -> bool;

    /// The listener's port, where this session may be offloaded to the kernel; `None` where it may not.
    fn offload_port(&self, session: &Session) -> Option<u16>;

    /// The client of a session without a claimed source, for listings; `None` where no client is known.
    fn unclaimed_client(&self, session: &Session) -> Option<SocketAddr>;

    /// Whether a list of clients denies the session's client. The lists may have changed since the session began, and a reload
    /// may have removed its listener.
    fn is_denied(&mut self, session: &Session) -> bool;

    /// The flows, to which datagrams without a header belong; the least recently used ones first.
    fn flows(&self, now: Instant) -> Vec<FlowState>;

    /// Adds a flow of a previous process.
    fn restore_flow(&mut self, flow: &FlowState, now: Instant);

    /// Expires the role's own state. Called once a second.
    fn tick(&mut self, now: Instant);
}

/// An admitted datagram, with its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmittedDatagram {
    /// The key of the datagram's session.
    pub(crate) key: SessionKey,
    /// The balancer, against whose limit the session counts; for the forwarder, the client's address, or its IPv6 /64.
    pub(crate) balancer: IpAddr,
    /// Offset of the payload.
    pub(crate) payload: usize,
    /// The header; for the forwarder, an empty one.
    pub(crate) header: DatagramHeader,
}
