//! Replies: received from backends on the sockets of sessions, sent to balancers.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use peername_sys::is_destroyed;
use peername_sys::udp::{PktInfo, RecvMeta};

use super::Worker;
use super::batch_item::{BATCH_SIZE, BatchItem, for_each_sent, payload, split_merged};
use super::batch_sender::OutgoingDatagram;
use crate::outcome::Failure;
use crate::udp::drop_reason::DropReason;
use crate::udp::endpoints::ReplyTo;
use crate::udp::lru_table::EntryId;
use crate::udp::session::Session;
use crate::udp::session::role::Role;

impl<R: Role> Worker<R> {
    /// Receives replies of a session into the free buffers of the inbox. Returns whether more may be queued.
    pub(super) fn receive_replies(&mut self, id: EntryId, now: Instant) -> bool {
        if self.reply_buffers_used == BATCH_SIZE {
            self.send_replies();
        }
        let Some(session) = self.sessions.table.get(id) else {
            return false;
        };
        let buffers = self.reply_buffers_used
            ..(self.reply_buffers_used + session.reply_batch).min(BATCH_SIZE);
        let wanted = buffers.len();
        let received = match self.inbox.receive(&session.socket, buffers.clone()) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) if is_destroyed(&error) => {
                self.sessions.close_destroyed(id);
                return false;
            }
            // An ICMP error about an earlier request. The session goes on, because a backend that restarts answers again.
            Err(error) => {
                self.sessions
                    .count_unsent(id, &DropReason::from_kernel(error));
                return true;
            }
        };
        self.reply_buffers_used += received;
        self.last_activity = now;
        let mut is_any_accepted = false;
        for buffer in buffers.take(received) {
            let Some((meta, bytes)) = self.inbox.get(buffer) else {
                continue;
            };
            if let Some(session) = self.sessions.table.get_mut(id) {
                let lost = session.overflow.take_new(&meta);
                self.sessions.count_lost(lost);
            }
            for range in split_merged(&meta) {
                self.sessions.tally.replies += 1;
                let datagram = bytes.get(range.clone()).unwrap_or_default();
                let header_len = self
                    .sessions
                    .table
                    .get(id)
                    .ok_or(DropReason::Evicted)
                    .and_then(|session| reply_header_len(session, &meta, datagram));
                match header_len {
                    Ok(_) if !self.sessions.accept_reply(id, now) => {
                        self.sessions.count_dropped(&DropReason::FlowChanged, None);
                    }
                    Ok(header_len) => {
                        is_any_accepted = true;
                        self.items.push(BatchItem {
                            session: id,
                            buffer,
                            payload: range.start + header_len..range.end,
                        });
                    }
                    Err(reason) => self.sessions.count_dropped(&reason, None),
                }
            }
        }
        if is_any_accepted {
            self.sessions.note_answered(id, now);
        }
        let is_full = received == wanted;
        if let Some(session) = self.sessions.table.get_mut(id) {
            // To look for a second datagram in vain costs as much as a wakeup for it.
            session.reply_batch = if is_full { REPLY_BATCH } else { 1 };
        }
        is_full
    }

    /// Sends the received replies to the balancers, each along the path of its session's last request.
    pub(super) fn send_replies(&mut self) {
        self.reply_buffers_used = 0;
        let mut items = std::mem::take(&mut self.items);
        // Sorted only if necessary: usually all replies leave by one socket.
        let first = items.first().map(|item| self.route_of(item));
        if items.iter().any(|item| Some(self.route_of(item)) != first) {
            items.sort_by_cached_key(|item| self.route_of(item));
        }
        let mut rest = &items[..];
        while let Some(first) = rest.first() {
            let route = self.route_of(first);
            let end = rest.iter().position(|item| self.route_of(item) != route);
            let (same_route, others) = rest.split_at(end.unwrap_or(rest.len()));
            self.send_replies_by(route, same_route);
            rest = others;
        }
        items.clear();
        self.items = items;
    }

    /// The socket by which a reply leaves. `None` where its session is closed.
    fn route_of(&self, item: &BatchItem) -> Option<ReplyRoute> {
        let ReplyTo {
            listener,
            original_destination,
            ..
        } = self.sessions.table.get(item.session)?.reply_to;
        Some(ReplyRoute {
            listener,
            original_destination,
        })
    }

    /// Sends replies by one socket.
    fn send_replies_by(&mut self, route: Option<ReplyRoute>, items: &[BatchItem]) {
        let listener = route.and_then(|route| self.listeners.get(route.listener));
        let datagrams: Option<Vec<_>> = items
            .iter()
            .map(|item| {
                let session = self.sessions.table.get(item.session)?;
                Some(outgoing_reply(session, payload(&self.inbox, item)))
            })
            .collect();
        let (Some(listener), Some(datagrams)) = (listener, datagrams) else {
            return self.count_all_dropped(items, &DropReason::Evicted);
        };
        let socket = match route.and_then(|route| route.original_destination) {
            None => &*listener.socket,
            Some(source) => match self.reply_sockets.socket_for(source, self.last_activity) {
                Ok(socket) => socket,
                Err(error) => {
                    let reason = DropReason::from(Failure::Local(error));
                    return self.count_all_dropped(items, &reason);
                }
            },
        };
        let failed = self.sender.send(socket, &datagrams);
        let sessions = &mut self.sessions;
        for_each_sent(items, &failed, |item| {
            sessions.tally.to_downstream += 1;
            if let Some(session) = sessions.table.get_mut(item.session) {
                session.count_reply(item.payload.len());
            }
        });
        for (_, reason) in &failed {
            sessions.count_dropped(reason, None);
        }
    }

    fn count_all_dropped(&mut self, items: &[BatchItem], reason: &DropReason) {
        for _ in items {
            self.sessions.count_dropped(reason, None);
        }
    }
}

/// The socket by which a reply leaves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ReplyRoute {
    listener: usize,
    /// The address that the reply is sent from, where a TPROXY rule redirected the request.
    original_destination: Option<SocketAddr>,
}

/// The length of a reply's header, 0 where it has none; an error for a reply that is not from the backend, or lacks the header that
/// it must have.
fn reply_header_len(
    session: &Session,
    meta: &RecvMeta,
    datagram: &[u8],
) -> Result<usize, DropReason> {
    // Before connect(2), the socket received from any address.
    if (meta.peer.ip(), meta.peer.port()) != (session.upstream.ip(), session.upstream.port()) {
        return Err(DropReason::Stranger);
    }
    if !session.headers.expected_on_replies {
        return Ok(0);
    }
    let header = &session.headers.request;
    if datagram.starts_with(header) {
        Ok(header.len())
    } else {
        Err(DropReason::HeaderMissing)
    }
}

/// The reply as it is sent along the path of its session's last request.
fn outgoing_reply<'a>(session: &'a Session, payload: &'a [u8]) -> OutgoingDatagram<'a> {
    let ReplyTo {
        peer,
        local,
        original_destination,
        ..
    } = session.reply_to;
    // A reply socket is bound to the original destination, so it has the source address and the family already.
    let (local, to) = match original_destination {
        None => (local, peer.0),
        Some(_) => (None, peer.canonical()),
    };
    OutgoingDatagram {
        header: &session.headers.reply,
        payload,
        to: Some(to),
        from: local.map(|local| PktInfo {
            interface: interface_for(peer.0, local.interface),
            ..local
        }),
    }
}

/// The interface to send by. Only link-local addresses need one; for others the routing tables decide, because on a host with
/// two uplinks, egress and ingress may differ.
fn interface_for(peer: SocketAddr, interface: u32) -> u32 {
    match peer.ip() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => interface,
        _ => 0,
    }
}

/// Limit of replies that are received at once for one session, so that other sessions do not wait long.
const REPLY_BATCH: usize = 16;
