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
        let came = match self.inbox.receive(&session.socket, buffers.clone()) {
            Ok(came) => came,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) if is_destroyed(&error) => {
                self.sessions.close_destroyed(id);
                return false;
            }
            // An ICMP error for an earlier request. The session goes on: a backend that is restarted answers again.
            Err(error) => {
                self.sessions
                    .count_unsent(id, &DropReason::by_kernel(error));
                return true;
            }
        };
        self.reply_buffers_used += came;
        self.last_activity = now;
        let mut accepted = false;
        for buffer in buffers.take(came) {
            let Some((arrived, bytes)) = self.inbox.get(buffer) else {
                continue;
            };
            if let Some(session) = self.sessions.table.get_mut(id) {
                let lost = session.overflow.take_new(&arrived);
                self.sessions.count_lost(lost);
            }
            for item in split_merged(&arrived) {
                self.sessions.tally.replies += 1;
                let datagram = bytes.get(item.clone()).unwrap_or_default();
                let session = self.sessions.table.get(id);
                let header = session
                    .ok_or(DropReason::Evicted)
                    .and_then(|session| reply_header_len(session, &arrived, datagram));
                match header {
                    Ok(_) if !self.sessions.accept_reply(id, now) => {
                        self.sessions.count_dropped(&DropReason::FlowChanged, None);
                    }
                    Ok(header) => {
                        accepted = true;
                        self.items.push(BatchItem {
                            session: id,
                            buffer,
                            payload: item.start + header..item.end,
                        });
                    }
                    Err(dropped) => self.sessions.count_dropped(&dropped, None),
                }
            }
        }
        if accepted {
            self.sessions.note_answered(id, now);
        }
        let more = came == wanted;
        if let Some(session) = self.sessions.table.get_mut(id) {
            // A call that finds no second datagram costs as much as another wakeup for it.
            session.reply_batch = if more { REPLY_BATCH } else { 1 };
        }
        more
    }

    /// Sends the received replies to the balancers, each along the path of its session's last request.
    pub(super) fn send_replies(&mut self) {
        self.reply_buffers_used = 0;
        let mut items = std::mem::take(&mut self.items);
        // Usually all leave by one socket, and looking up a session is not free.
        let first = items.first().map(|item| self.route_of(item));
        if items.iter().any(|item| Some(self.route_of(item)) != first) {
            items.sort_by_cached_key(|item| self.route_of(item));
        }
        let mut rest = &items[..];
        while let Some(first) = rest.first() {
            let route = self.route_of(first);
            let others = rest.iter().position(|item| self.route_of(item) != route);
            let (same_route, behind) = rest.split_at(others.unwrap_or(rest.len()));
            self.send_replies_from(route, same_route);
            rest = behind;
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

    fn send_replies_from(&mut self, route: Option<ReplyRoute>, items: &[BatchItem]) {
        let session_of = |item: &BatchItem| self.sessions.table.get(item.session);
        let listener = route.and_then(|route| self.listeners.get(route.listener));
        let datagrams: Option<Vec<_>> = items
            .iter()
            .map(|item| Some(reply(session_of(item)?, payload(&self.inbox, item))))
            .collect();
        let (Some(listener), Some(datagrams)) = (listener, datagrams) else {
            let evicted = |_| self.sessions.count_dropped(&DropReason::Evicted, None);
            return items.iter().for_each(evicted);
        };
        let original_destination = route.and_then(|route| route.original_destination);
        let socket = match original_destination.map(|original_destination| {
            self.reply_sockets
                .socket_for(original_destination, self.last_activity)
        }) {
            None => &listener.socket,
            Some(Ok(reply_socket)) => reply_socket,
            Some(Err(failed)) => {
                let dropped = DropReason::from(Failure::Local(failed));
                let sessions = &mut self.sessions;
                return items
                    .iter()
                    .for_each(|_| sessions.count_dropped(&dropped, None));
            }
        };
        let failed = self.sender.send(socket, &datagrams);
        let sessions = &mut self.sessions;
        for_each_sent(items, &failed, |item| {
            sessions.tally.to_downstream += 1;
            if let Some(session) = sessions.table.get_mut(item.session) {
                session.count_reply(item.payload.len());
            }
        });
        for (_, dropped) in &failed {
            sessions.count_dropped(dropped, None);
        }
    }
}

/// The socket by which a reply leaves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ReplyRoute {
    listener: usize,
    /// Where a TPROXY rule redirected the request: the address that the reply is sent from.
    original_destination: Option<SocketAddr>,
}

/// The length of a reply's header, 0 where it has none.
///
/// # Errors
///
/// The reply is not from the backend, or lacks the header that it must have.
fn reply_header_len(
    session: &Session,
    arrived: &RecvMeta,
    datagram: &[u8],
) -> Result<usize, DropReason> {
    // Before it was connected, the socket received from any address.
    if (arrived.peer.ip(), arrived.peer.port()) != (session.upstream.ip(), session.upstream.port())
    {
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

fn reply<'a>(session: &'a Session, payload: &'a [u8]) -> OutgoingDatagram<'a> {
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

/// The interface to send by: only link-local addresses need theirs. For others the routing tables decide: on a host
/// with two uplinks, egress and ingress may differ.
fn interface_for(peer: SocketAddr, interface: u32) -> u32 {
    match peer.ip() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => interface,
        _ => 0,
    }
}

/// Replies received at once from one session, so that others are not kept waiting.
const REPLY_BATCH: usize = 16;
