//! The way back: what sessions' sockets have received, to the balancers.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use peername_sys::is_destroyed;
use peername_sys::udp::{PktInfo, RecvMeta};

use super::Worker;
use super::batch_sender::Datagram;
use super::piece::{BATCH, Piece, each_sent, payload, pieces};
use crate::outcome::Failure;
use crate::udp::drop_reason::Dropped;
use crate::udp::endpoints::Path;
use crate::udp::lru_table::Id;
use crate::udp::session::Session;
use crate::udp::session::role::Role;

impl<R: Role> Worker<R> {
    /// Takes a session's replies into what is left of the inbox. Returns whether more may wait.
    pub(super) fn replies(&mut self, id: Id, now: Instant) -> bool {
        if self.filled == BATCH {
            self.send_replies();
        }
        let Some(session) = self.sessions.table.get(id) else {
            return false;
        };
        let places = self.filled..(self.filled + session.burst).min(BATCH);
        let wanted = places.len();
        let came = match self.inbox.receive(&session.socket, places.clone()) {
            Ok(came) => came,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) if is_destroyed(&error) => {
                self.sessions.abort(id);
                return false;
            }
            // What came back for an earlier request, by ICMP. The session goes on: a backend that is
            // restarted answers again.
            Err(error) => {
                self.sessions.unsent(id, &Dropped::by_kernel(error));
                return true;
            }
        };
        self.filled += came;
        self.moved = now;
        let mut accepted = false;
        for place in places.take(came) {
            let Some((arrived, bytes)) = self.inbox.get(place) else {
                continue;
            };
            if let Some(session) = self.sessions.table.get_mut(id) {
                let lost = session.lost.since(&arrived);
                self.sessions.lost(lost);
            }
            for piece in pieces(&arrived) {
                self.sessions.tally.replies += 1;
                let datagram = bytes.get(piece.clone()).unwrap_or_default();
                let session = self.sessions.table.get(id);
                let header = session
                    .ok_or(Dropped::Evicted)
                    .and_then(|session| header_of_reply(session, &arrived, datagram));
                match header {
                    Ok(_) if !self.sessions.answer(id, now) => {
                        self.sessions.dropped(&Dropped::FlowChanged, None);
                    }
                    Ok(header) => {
                        accepted = true;
                        self.pieces.push(Piece {
                            session: id,
                            place,
                            payload: piece.start + header..piece.end,
                        });
                    }
                    Err(dropped) => self.sessions.dropped(&dropped, None),
                }
            }
        }
        if accepted {
            self.sessions.answered(id, now);
        }
        let more = came == wanted;
        if let Some(session) = self.sessions.table.get_mut(id) {
            // To look for a second datagram costs as much as to be told that there is one.
            session.burst = if more { BATCH_OF_SESSION } else { 1 };
        }
        more
    }

    /// Sends the replies that were taken to the balancers, each the way its session's last request came.
    pub(super) fn send_replies(&mut self) {
        self.filled = 0;
        let mut pieces = std::mem::take(&mut self.pieces);
        // Usually all leave by one socket, and to look up a session is not free.
        let first = pieces.first().map(|piece| self.exit_of(piece));
        if pieces
            .iter()
            .any(|piece| Some(self.exit_of(piece)) != first)
        {
            pieces.sort_by_cached_key(|piece| self.exit_of(piece));
        }
        let mut rest = &pieces[..];
        while let Some(first) = rest.first() {
            let exit = self.exit_of(first);
            let others = rest.iter().position(|piece| self.exit_of(piece) != exit);
            let (of_one, behind) = rest.split_at(others.unwrap_or(rest.len()));
            self.send_replies_from(exit, of_one);
            rest = behind;
        }
        pieces.clear();
        self.pieces = pieces;
    }

    /// `None` when the session is no more.
    fn exit_of(&self, piece: &Piece) -> Option<Exit> {
        let Path {
            listener, original, ..
        } = self.sessions.table.get(piece.session)?.path;
        Some(Exit { listener, original })
    }

    fn send_replies_from(&mut self, exit: Option<Exit>, pieces: &[Piece]) {
        let session_of = |piece: &Piece| self.sessions.table.get(piece.session);
        let listener = exit.and_then(|exit| self.listeners.get(exit.listener));
        let datagrams: Option<Vec<_>> = pieces
            .iter()
            .map(|piece| Some(reply(session_of(piece)?, payload(&self.inbox, piece))))
            .collect();
        let (Some(listener), Some(datagrams)) = (listener, datagrams) else {
            let evicted = |_| self.sessions.dropped(&Dropped::Evicted, None);
            return pieces.iter().for_each(evicted);
        };
        let original = exit.and_then(|exit| exit.original);
        let socket = match original.map(|original| self.outlets.from(original, self.moved)) {
            None => &listener.socket,
            Some(Ok(outlet)) => outlet,
            Some(Err(failed)) => {
                let dropped = Dropped::from(Failure::Local(failed));
                let sessions = &mut self.sessions;
                return pieces.iter().for_each(|_| sessions.dropped(&dropped, None));
            }
        };
        let failed = self.courier.send(socket, &datagrams);
        let sessions = &mut self.sessions;
        each_sent(pieces, &failed, |piece| {
            sessions.tally.to_downstream += 1;
            if let Some(session) = sessions.table.get_mut(piece.session) {
                session.sent_downstream(piece.payload.len());
            }
        });
        for (_, dropped) in &failed {
            sessions.dropped(dropped, None);
        }
    }
}

/// Which socket an answer leaves by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Exit {
    listener: usize,
    /// Not the listener's own address, but this.
    original: Option<SocketAddr>,
}

/// How much header a reply has, where it must have one.
fn header_of_reply(
    session: &Session,
    arrived: &RecvMeta,
    datagram: &[u8],
) -> Result<usize, Dropped> {
    // Until it was connected, the socket received from anybody.
    if (arrived.peer.ip(), arrived.peer.port()) != (session.upstream.ip(), session.upstream.port())
    {
        return Err(Dropped::Stranger);
    }
    if !session.headers.expected_on_replies {
        return Ok(0);
    }
    let header = &session.headers.request;
    if datagram.starts_with(header) {
        Ok(header.len())
    } else {
        Err(Dropped::HeaderMissing)
    }
}

fn reply<'a>(session: &'a Session, payload: &'a [u8]) -> Datagram<'a> {
    let Path {
        peer,
        local,
        original,
        ..
    } = session.path;
    // Where a TPROXY rule brought the request, the socket has the address already, and its family.
    let (local, to) = match original {
        None => (local, peer.0),
        Some(_) => (None, peer.canonical()),
    };
    Datagram {
        header: &session.headers.reply,
        payload,
        to: Some(to),
        from: local.map(|local| PktInfo {
            interface: interface_for(peer.0, local.interface),
            ..local
        }),
    }
}

/// Only link-local addresses need their interface. For others the routing tables know better: on a
/// host with two uplinks the way out need not be the way in.
fn interface_for(peer: SocketAddr, interface: u32) -> u32 {
    match peer.ip() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => interface,
        _ => 0,
    }
}

/// Replies taken at once from one session: the others are waiting.
const BATCH_OF_SESSION: usize = 16;
