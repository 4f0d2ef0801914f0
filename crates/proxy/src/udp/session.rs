//! A session: one client behind one balancer, as plain data.

mod commands;
mod eviction;
mod failover;
mod handover;
mod offload;
pub(super) mod role;
mod snapshot;
pub(super) mod table;
mod verification;

use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use peername_sys::udp::RecvMeta;

use super::dialect::SessionHeaders;
use super::endpoints::{ReplyTo, SessionKey};
use crate::outcome::{Outcome, SessionEnd};
use crate::telemetry::record::session::SessionRecord;
use offload::candidate::OffloadCandidate;

/// A session: the upstream socket of one client, and where its replies go.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) key: SessionKey,
    pub(crate) reply_to: ReplyTo,
    /// When the last request was received in user space; requests that the kernel carries are not seen.
    pub(crate) last_request: Instant,
    /// When the backend was last verified to see the client.
    verified_at: Instant,
    /// The upstream socket, connected to the backend from the client's address.
    pub(crate) socket: UdpSocket,
    /// The backend, as getpeername(2) has it.
    pub(crate) upstream: SocketAddr,
    /// The headers of requests and replies.
    pub(crate) headers: SessionHeaders,
    /// Limit of replies that the next call receives.
    pub(crate) reply_batch: usize,
    /// Replies that the kernel has dropped.
    pub(crate) overflow: OverflowCounter,
    record: Box<SessionRecord>,
    /// The state of kernel offload; `None` before the first answer, and without a kernel data path.
    offload: Option<Box<OffloadCandidate>>,
}

/// The kernel's count of datagrams dropped at a socket (SO_RXQ_OVFL), as of the last read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OverflowCounter(pub(super) u32);

impl OverflowCounter {
    /// Returns how many datagrams were dropped since the last call.
    pub(crate) fn take_new(&mut self, meta: &RecvMeta) -> u32 {
        let dropped = meta.dropped_total.unwrap_or(self.0);
        dropped.wrapping_sub(std::mem::replace(&mut self.0, dropped))
    }
}

impl Session {
    pub(crate) fn new(
        key: SessionKey,
        reply_to: ReplyTo,
        last_request: Instant,
        socket: UdpSocket,
        upstream: SocketAddr,
        headers: SessionHeaders,
        record: SessionRecord,
    ) -> Self {
        Self {
            key,
            reply_to,
            last_request,
            verified_at: last_request,
            socket,
            upstream,
            headers,
            reply_batch: 1,
            overflow: OverflowCounter::default(),
            record: Box::new(record),
            offload: None,
        }
    }

    /// The header of the next request. With `first_only`, every request has it until one has been sent, because any request of
    /// a batch may be the first that can be sent.
    pub(crate) fn request_header(&self) -> &[u8] {
        let is_first = self.record.datagrams.to_upstream == 0;
        if self.headers.first_only && !is_first {
            &[]
        } else {
            &self.headers.request
        }
    }

    /// Whether the backend has ever answered.
    pub(crate) fn is_answered(&self) -> bool {
        self.record.datagrams.to_downstream > 0
    }

    /// Counts a request that was sent. `bytes`: of payload.
    pub(crate) fn count_request(&mut self, bytes: usize) {
        self.record.tally.to_upstream += bytes as u64;
        self.record.datagrams.to_upstream += 1;
    }

    /// Counts a reply that was sent. `bytes`: of payload.
    pub(crate) fn count_reply(&mut self, bytes: usize) {
        self.record.tally.to_downstream += bytes as u64;
        self.record.datagrams.to_downstream += 1;
    }

    /// Closes the session and counts and logs its outcome.
    pub(crate) fn close(self, end: SessionEnd) {
        let end = match end {
            SessionEnd::Idle if !self.is_answered() => SessionEnd::Unanswered,
            end => end,
        };
        self.record.end(Outcome::SessionEnded(end));
    }
}
