//! What a worker asks of the program it works for.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Instant;

use crate::outcome::Failure;
use crate::udp::dialect::SessionHeaders;
use crate::udp::dialect::header::DatagramHeader;
use crate::udp::drop_reason::DropReason;
use crate::udp::endpoints::{ReplyTo, SessionKey};
use crate::udp::session::Session;

/// The proxy or the forwarder.
pub(crate) trait Role {
    /// Says which session a datagram belongs to, or that it belongs to none.
    ///
    /// # Errors
    ///
    /// [`DropReason`], with the reason.
    fn admit(
        &mut self,
        bytes: &[u8],
        reply_to: &ReplyTo,
        now: Instant,
    ) -> Result<AdmittedDatagram, DropReason>;

    /// Opens the upstream socket of a new session.
    ///
    /// # Errors
    ///
    /// [`Failure`], as for a connection.
    fn open_socket(&self, admitted: &AdmittedDatagram) -> Result<UdpSocket, Failure>;

    /// Where a new session would lead from its client's own address, by the rules of now; `None` from another.
    ///
    /// # Errors
    ///
    /// [`Failure`], as [`Role::open_socket`].
    fn target(&self, admitted: &AdmittedDatagram) -> Result<Option<SocketAddr>, Failure>;

    /// What goes in front of its datagrams.
    ///
    /// # Errors
    ///
    /// [`Failure::Header`].
    fn headers(&self, admitted: &AdmittedDatagram) -> Result<SessionHeaders, Failure>;

    /// Whether a reply that goes this way still comes to the client of `key`; notes that its flow was answered.
    fn accept_reply(&mut self, reply_to: &ReplyTo, key: &SessionKey, now: Instant) -> bool;

    /// The listener's port, where this session may be offloaded to the kernel; `None` where it may not.
    fn offload_port(&self, session: &Session) -> Option<u16>;

    /// Takes note of the time, about once a second.
    fn tick(&mut self, now: Instant);
}

/// A datagram that may go on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmittedDatagram {
    /// Its session.
    pub(crate) key: SessionKey,
    /// Whose share of sessions it counts against.
    pub(crate) balancer: IpAddr,
    /// Where its payload begins.
    pub(crate) payload: usize,
    /// What a header said, where there is one.
    pub(crate) header: DatagramHeader,
}
