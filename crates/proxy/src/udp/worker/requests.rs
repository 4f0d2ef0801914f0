//! The way there: what balancers have sent, to the backends.

use std::io;
use std::time::Instant;

use peername_sys::event::async_epoll::AsyncEpoll;
use peername_sys::is_destroyed;
use peername_sys::udp::RecvBatch;

use super::Worker;
use super::batch_sender::{Courier, Datagram};
use super::piece::{BATCH, Piece, each_sent, payload, pieces};
use crate::addr::PeerAddr;
use crate::udp::drop_reason::Dropped;
use crate::udp::endpoints::Path;
use crate::udp::session::role::Role;
use crate::udp::session::table::Sessions;

impl<R: Role> Worker<R> {
    /// Takes a batch of requests and sends each to its session's backend. Returns whether more may wait;
    /// an error when nothing will ever come there again.
    pub(super) fn requests(
        &mut self,
        number: usize,
        now: Instant,
        poller: &AsyncEpoll,
    ) -> io::Result<bool> {
        self.send_replies();
        let Some(listener) = self.listeners.get_mut(number) else {
            return Ok(false);
        };
        let came = match self.inbox.receive(&listener.socket, 0..BATCH) {
            Ok(came) => came,
            Err(error) if is_destroyed(&error) => return Err(error),
            Err(error) => return Ok(error.kind() != io::ErrorKind::WouldBlock),
        };
        let (inbox, courier, unsent) = (&self.inbox, &mut self.courier, &mut self.pieces);
        for place in 0..came {
            let Some((arrived, bytes)) = inbox.get(place) else {
                continue;
            };
            let lost = listener.lost.since(&arrived);
            self.sessions.lost(lost);
            let path = Path {
                listener: number,
                peer: PeerAddr(arrived.peer),
                local: arrived.local,
                // From its own port, the listener answers itself.
                original: arrived
                    .original
                    .filter(|original| original.port() != listener.port),
            };
            for piece in pieces(&arrived) {
                self.sessions.tally.received += 1;
                let datagram = bytes.get(piece.clone()).unwrap_or_default();
                let received = if arrived.truncated {
                    Err(Dropped::Truncated)
                } else {
                    let flush = |sessions: &mut _| send_requests(sessions, inbox, courier, unsent);
                    self.sessions.receive(datagram, &path, now, poller, flush)
                };
                match received {
                    Ok((session, payload)) => {
                        self.moved = now;
                        unsent.push(Piece {
                            session,
                            place,
                            payload: piece.start + payload..piece.end,
                        });
                    }
                    Err(dropped) => self.sessions.dropped(&dropped, Some(&path)),
                }
            }
        }
        send_requests(&mut self.sessions, inbox, courier, unsent);
        Ok(came == BATCH)
    }
}

/// Sends requests, those of one session together and in their order.
fn send_requests<R: Role>(
    sessions: &mut Sessions<R>,
    inbox: &RecvBatch,
    courier: &mut Courier,
    unsent: &mut Vec<Piece>,
) {
    unsent.sort_by_key(|piece| piece.session);
    for of_session in unsent.chunk_by(|a, b| a.session == b.session) {
        send_requests_of(sessions, inbox, courier, of_session);
    }
    unsent.clear();
}

fn send_requests_of<R: Role>(
    sessions: &mut Sessions<R>,
    inbox: &RecvBatch,
    courier: &mut Courier,
    pieces: &[Piece],
) {
    let Some(id) = pieces.first().map(|piece| piece.session) else {
        return;
    };
    let Some(session) = sessions.table.get(id) else {
        pieces
            .iter()
            .for_each(|_| sessions.dropped(&Dropped::Evicted, None));
        return;
    };
    let datagrams: Vec<_> = pieces
        .iter()
        .map(|piece| Datagram {
            header: session.request_header(),
            payload: payload(inbox, piece),
            to: None,
            from: None,
        })
        .collect();
    let failed = courier.send(&session.socket, &datagrams);
    each_sent(pieces, &failed, |piece| {
        sessions.tally.to_upstream += 1;
        if let Some(session) = sessions.table.get_mut(piece.session) {
            session.sent_upstream(piece.payload.len());
        }
    });
    for (_, dropped) in &failed {
        sessions.unsent(id, dropped);
    }
    // Such a socket may never wake us again, and the client's next datagram needs another.
    let destroyed = |(_, dropped): &(_, _)| matches!(dropped, Dropped::SocketDestroyed(_));
    if failed.iter().any(destroyed) {
        sessions.abort(id);
    }
}
