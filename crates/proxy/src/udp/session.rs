//! One client behind one balancer: plain data, whoever moves its datagrams.

pub(super) mod offloaded;
pub(super) mod role;
pub(super) mod table;

use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use peername_kernel::data_path::Usage;
use peername_sys::udp::RecvMeta;

use super::dialect::SessionHeaders;
use super::endpoints::{ReplyTo, SessionKey};
use super::offload::candidate::OffloadCandidate;
use crate::outcome::{Outcome, Over};
use crate::telemetry::record::{Exchanged, Record};

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) key: SessionKey,
    pub(crate) reply_to: ReplyTo,
    /// When its client was last last_request here.
    pub(crate) last_request: Instant,
    /// Connected to the backend.
    pub(crate) socket: UdpSocket,
    /// The backend, as the socket has it.
    pub(crate) upstream: SocketAddr,
    /// What goes in front of what.
    pub(crate) headers: SessionHeaders,
    /// How many replies are taken at once.
    pub(crate) reply_batch: usize,
    /// Replies that the kernel has thrown away.
    pub(crate) overflow: OverflowCounter,
    record: Box<Record>,
    /// Whether it is one for the kernel; none where there is no such data path.
    pub(crate) offload: Option<Box<OffloadCandidate>>,
}

/// What the kernel has thrown away at a socket, as far as was counted (SO_RXQ_OVFL).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OverflowCounter(u32);

impl OverflowCounter {
    /// How many more than when this was last asked.
    pub(crate) fn take_new(&mut self, arrived: &RecvMeta) -> u32 {
        let lost = arrived.dropped.unwrap_or(self.0);
        lost.wrapping_sub(std::mem::replace(&mut self.0, lost))
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
        record: Record,
    ) -> Self {
        Self {
            key,
            reply_to,
            last_request,
            socket,
            upstream,
            headers,
            reply_batch: 1,
            overflow: OverflowCounter::default(),
            record: Box::new(record),
            offload: None,
        }
    }

    /// What goes in front of a request. Until one has been sent, all have the header: any of a batch may
    /// turn out to be the first.
    pub(crate) fn request_header(&self) -> &[u8] {
        let is_first = self.exchanged().to_upstream == 0;
        if self.headers.first_only && !is_first {
            &[]
        } else {
            &self.headers.request
        }
    }

    /// Whether the backend has ever answered.
    pub(crate) fn is_answered(&self) -> bool {
        self.exchanged().to_downstream > 0
    }

    /// A request of so many octets was sent.
    pub(crate) fn count_request(&mut self, octets: usize) {
        self.record.tally.to_upstream += octets as u64;
        if let Some(datagrams) = &mut self.record.datagrams {
            datagrams.to_upstream += 1;
        }
    }

    /// A reply of so many octets was sent.
    pub(crate) fn count_reply(&mut self, octets: usize) {
        self.record.tally.to_downstream += octets as u64;
        if let Some(datagrams) = &mut self.record.datagrams {
            datagrams.to_downstream += 1;
        }
    }

    /// The kernel has carried this much.
    pub(crate) fn add_kernel_usage(&mut self, usage: &Usage) {
        self.record.tally.to_upstream += usage.request_octets;
        self.record.tally.to_downstream += usage.reply_octets;
        if let Some(datagrams) = &mut self.record.datagrams {
            datagrams.to_upstream += usage.requests;
            datagrams.to_downstream += usage.replies;
        }
    }

    /// The end of it, counted and in the log.
    pub(crate) fn close(self, over: Over) {
        let over = match over {
            Over::Idle if !self.is_answered() => Over::Unanswered,
            over => over,
        };
        self.record.end(Outcome::Over(over));
    }

    fn exchanged(&self) -> Exchanged {
        self.record.datagrams.unwrap_or_default()
    }
}
