//! Reads the header of each datagram. With [`Dialect::First`], remembers it for the datagrams of the flow that follow.

use std::time::Instant;

use peername_proto::begins_like_header;

use super::Dialect;
use super::header::DatagramHeader;
use crate::policy::rules::Rules;
use crate::udp::drop_reason::DropReason;
use crate::udp::endpoints::{FlowKey, ReplyTo, SessionKey};
use crate::udp::handover::{FlowState, instant_before};
use crate::udp::lru_table::{LruTable, TableLimits};

/// The header reader of one worker.
pub(crate) struct HeaderReader {
    dialect: Dialect,
    /// With [`Dialect::First`]: the last header of each flow.
    flows: LruTable<FlowKey, DatagramHeader>,
}

impl HeaderReader {
    /// A reader that remembers flows within these limits.
    pub(crate) fn new(dialect: Dialect, limits: TableLimits) -> Self {
        Self {
            dialect,
            flows: LruTable::new(limits),
        }
    }

    /// Returns the header of a datagram, or that of its flow if the datagram has none.
    pub(crate) fn read(
        &mut self,
        bytes: &[u8],
        reply_to: &ReplyTo,
        now: Instant,
        rules: &Rules,
    ) -> Result<DatagramHeader, DropReason> {
        match self.dialect {
            Dialect::Each => DatagramHeader::parse_proxy_v2(bytes, reply_to.peer, rules),
            Dialect::Spp => DatagramHeader::parse_spp(bytes, reply_to.peer),
            Dialect::First => self.read_flow(bytes, reply_to, now, rules),
        }
    }

    /// Whether a reply by this path still reaches the client of `key`. With [`Dialect::First`] the flow may belong to another
    /// client by now, or to none. Marks the flow as answered, like its session, so that it is evicted late.
    pub(crate) fn accept_reply(
        &mut self,
        reply_to: &ReplyTo,
        key: &SessionKey,
        now: Instant,
    ) -> bool {
        if self.dialect != Dialect::First {
            return true;
        }
        let Some(id) = self.flows.find(&FlowKey::from_request(reply_to)) else {
            return false;
        };
        let is_same_client = self.flows.get(id).is_some_and(|flow| {
            flow.claims.facts.claim.map(|claim| claim.0) == key.client
                && flow.claims.facts.destination == key.destination
        });
        if is_same_client {
            self.flows.touch(id, now, true);
        }
        is_same_client
    }

    /// The flows, the least recently used ones first.
    pub(crate) fn flows(&self, now: Instant) -> Vec<FlowState> {
        let mut entries: Vec<_> = self.flows.entries().collect();
        entries.sort_by_key(|entry| entry.used_at);
        entries
            .into_iter()
            .map(|entry| {
                let idle = now.saturating_duration_since(entry.used_at);
                FlowState::new(*entry.key, entry.value, idle, entry.is_answered)
            })
            .collect()
    }

    /// Adds a flow of a previous process.
    pub(crate) fn restore(&mut self, flow: &FlowState, now: Instant) {
        let balancer = flow.peer().ip();
        let used_at = instant_before(now, flow.idle);
        let _ = self.flows.evict_for(balancer);
        let id = self
            .flows
            .insert(flow.key, balancer, used_at, flow.header());
        self.flows.touch(id, used_at, flow.is_answered);
    }

    /// Forgets flows after their idle timeout.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.flows.remove_expired(now).is_some() {}
    }

    /// Ends the flow of a sender that is no longer trusted, or whose header is refused: the header could name another client.
    pub(crate) fn end_flow(&mut self, reply_to: &ReplyTo) {
        if let Some(id) = self.flows.find(&FlowKey::from_request(reply_to)) {
            self.flows.remove(id);
        }
    }

    /// A header opens a flow, or changes the client of the flow; a datagram without a header belongs to the flow of its sender.
    /// A refused header ends the flow: the datagrams that follow belong to the refused client, not to the client before it.
    fn read_flow(
        &mut self,
        bytes: &[u8],
        reply_to: &ReplyTo,
        now: Instant,
        rules: &Rules,
    ) -> Result<DatagramHeader, DropReason> {
        let key = FlowKey::from_request(reply_to);
        let existing = self.flows.find(&key);
        if let Some(id) = existing
            && !begins_like_header(bytes)
        {
            self.flows.touch(id, now, false);
            let flow = self.flows.get(id).copied();
            return flow.ok_or(DropReason::Evicted);
        }
        let header = DatagramHeader::parse_flow_header(bytes, reply_to.peer, rules)
            .inspect_err(|_| self.end_flow(reply_to))?;
        let flow = DatagramHeader { len: 0, ..header };
        match existing {
            Some(id) => {
                self.flows.touch(id, now, false);
                if let Some(previous) = self.flows.get_mut(id) {
                    *previous = flow;
                }
            }
            None => {
                let balancer = reply_to.peer.ip();
                let _ = self.flows.evict_for(balancer);
                self.flows.insert(key, balancer, now, flow);
            }
        }
        if header.len == bytes.len() {
            return Err(DropReason::HeaderOnly);
        }
        Ok(header)
    }
}
