//! Requests: received from balancers, sent to backends.

use std::io;
use std::time::Instant;

use peername_sys::event::async_epoll::AsyncEpoll;
use peername_sys::is_destroyed;
use peername_sys::udp::RecvBatch;

use super::Worker;
use super::batch_item::{BATCH_SIZE, BatchItem, for_each_sent, payload, split_merged};
use super::batch_sender::{BatchSender, OutgoingDatagram};
use crate::udp::drop_reason::{DropReason, DroppedRequest};
use crate::udp::endpoints::{DatagramOrigin, ReplyTo};
use crate::udp::session::role::Role;
use crate::udp::session::table::SessionTable;
use peername_server::addr::PeerAddr;

impl<R: Role> Worker<R> {
    /// Receives a batch of requests and sends each to its session's backend. Returns whether more may be queued.
    ///
    /// # Errors
    ///
    /// The listener's socket was destroyed: nothing will be received there again.
    pub(super) fn receive_requests(
        &mut self,
        number: usize,
        now: Instant,
        poller: &AsyncEpoll,
    ) -> io::Result<bool> {
        self.send_replies();
        let Some(listener) = self.listeners.get_mut(number) else {
            return Ok(false);
        };
        let received = match self.inbox.receive(&listener.socket, 0..BATCH_SIZE) {
            Ok(received) => received,
            Err(error) if is_destroyed(&error) => return Err(error),
            Err(error) => return Ok(error.kind() != io::ErrorKind::WouldBlock),
        };
        let (inbox, sender, unsent) = (&self.inbox, &mut self.sender, &mut self.items);
        for buffer in 0..received {
            let Some((meta, bytes)) = inbox.get(buffer) else {
                continue;
            };
            let lost = listener.overflow.take_new(&meta);
            self.sessions.count_lost(lost);
            let reply_to = ReplyTo {
                listener: number,
                peer: PeerAddr(meta.peer),
                local: meta.local,
                // Replies from the listener's own port leave by the listener's socket.
                original_destination: meta
                    .original
                    .filter(|original| original.port() != listener.port),
                is_transparent: meta.original.is_some(),
            };
            for range in split_merged(&meta) {
                self.sessions.tally.received += 1;
                let datagram = bytes.get(range.clone()).unwrap_or_default();
                let found = if meta.is_truncated {
                    Err(DropReason::Truncated.into())
                } else {
                    let flush = |sessions: &mut _| send_requests(sessions, inbox, sender, unsent);
                    self.sessions
                        .find_or_begin(datagram, &reply_to, now, poller, flush)
                };
                match found {
                    Ok((session, payload)) => {
                        self.last_activity = now;
                        unsent.push(BatchItem {
                            session,
                            buffer,
                            payload: range.start + payload..range.end,
                        });
                    }
                    Err(DroppedRequest { reason, client }) => {
                        let peer = reply_to.peer;
                        let origin = Some(DatagramOrigin { peer, client });
                        self.sessions.count_dropped(&reason, origin);
                    }
                }
            }
        }
        send_requests(&mut self.sessions, inbox, sender, unsent);
        Ok(received == BATCH_SIZE)
    }
}

/// Sends requests, grouped by session and in their order.
fn send_requests<R: Role>(
    sessions: &mut SessionTable<R>,
    inbox: &RecvBatch,
    sender: &mut BatchSender,
    unsent: &mut Vec<BatchItem>,
) {
    unsent.sort_by_key(|item| item.session);
    for same_session in unsent.chunk_by(|a, b| a.session == b.session) {
        send_session_requests(sessions, inbox, sender, same_session);
    }
    unsent.clear();
}

/// Sends requests of one session.
fn send_session_requests<R: Role>(
    sessions: &mut SessionTable<R>,
    inbox: &RecvBatch,
    sender: &mut BatchSender,
    items: &[BatchItem],
) {
    let Some(id) = items.first().map(|item| item.session) else {
        return;
    };
    let Some(session) = sessions.table.get(id) else {
        for _ in items {
            sessions.count_dropped(&DropReason::Evicted, None);
        }
        return;
    };
    let datagrams: Vec<_> = items
        .iter()
        .map(|item| OutgoingDatagram {
            header: session.request_header(),
            payload: payload(inbox, item),
            to: None,
            from: None,
        })
        .collect();
    let failed = sender.send(&session.socket, &datagrams);
    for_each_sent(items, &failed, |item| {
        sessions.tally.to_upstream += 1;
        if let Some(session) = sessions.table.get_mut(item.session) {
            session.count_request(item.payload.len());
        }
    });
    for (_, reason) in &failed {
        sessions.count_unsent(id, reason);
    }
    // A destroyed socket may never become ready again, and the client's next datagram needs a new socket.
    if failed
        .iter()
        .any(|(_, reason)| matches!(reason, DropReason::SocketDestroyed(_)))
    {
        sessions.close_destroyed(id);
    }
}
