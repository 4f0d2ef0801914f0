//! Peeks at the header of an accepted connection: the driver of [`HeaderCheck`] with this crate's system calls.
//!
//! The header is peeked at in the socket's receive queue and discarded only when it is complete, so a peek at an incomplete
//! header leaves the connection as it was.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use peername_identity::{
    Counter, HeaderAddresses, HeaderCheck, Identity, NotStored, Peeked, Refusal,
    SocketQueries as _, Step, Table, WAKEUP_SECRET_LEN, as_socket_family,
};
use peername_sys::ipc::foreign_fd::ForeignFd;
use peername_sys::socket::upstream::local_addr;
use peername_sys::tcp::{socket_info, stream};

use crate::client_judge::{ClientJudge, ConnectionEnds, DeniedClient};
use crate::sockets::ProgramSocket;

/// The result of a peek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeekOutcome {
    /// The program gets the connection: the header is discarded and the client, if it named one, stored in the table; or
    /// no header was expected.
    Ready(Admission),
    /// The header is incomplete: in all it has at least this many bytes.
    Incomplete(usize),
    /// The connection is refused, and that is counted and recorded for the log. The caller closes it with
    /// [`close_with_reset`].
    Refused,
}

/// The addresses that a connection was judged by when it was admitted. Those of a connection that is reset later are nowhere
/// else: it has no peer any more, and the table may have been swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    /// The real peer.
    pub(crate) peer: SocketAddr,
    /// The client that the header names.
    pub(crate) client: Option<SocketAddr>,
    /// The counter to increment when the program gets the connection; `None` for a socket that is not TCP.
    pub(crate) counter: Option<Counter>,
}

impl Admission {
    /// The address to show as the peer's, in the family of the socket.
    pub(crate) fn shown_peer(self) -> SocketAddr {
        self.client.map_or(self.peer, |client| {
            as_socket_family(client, self.peer.is_ipv6())
        })
    }

    /// Judges the connection by the lists as they are now.
    pub(super) fn judge(
        self,
        connection: BorrowedFd<'_>,
        judge: Option<&dyn ClientJudge>,
    ) -> Result<(), DeniedClient> {
        let Some(judge) = judge else {
            return Ok(());
        };
        let ends = ConnectionEnds::from_connection(connection, self.peer);
        if self.counter == Some(Counter::PassedThrough) {
            judge.judge(ends, None)
        } else {
            judge.judge_again(ends, self.client)
        }
    }
}

/// A connection that the program gets.
#[derive(Debug)]
pub(crate) struct AdmittedConnection {
    pub(crate) connection: ForeignFd,
    pub(crate) admission: Admission,
}

/// The real peer of a connection, and its network namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionOrigin {
    /// The peer, whether trusted to send headers or not.
    pub(crate) peer: SocketAddr,
    /// The network namespace of a connection that is known to be TCP; `None` if the kernel has to be queried for the namespace
    /// and the protocol.
    pub(crate) namespace: Option<u64>,
}

/// Checks a connection that was just accepted by a listener that expects headers: whether its peer is trusted, and its
/// header complete. `None` if it is one of the header waiter's wake-up connections, which have no header.
///
/// `buffer` must have room for the largest header ([`peername_identity::Policy::max_header`]). Never blocks on a peer.
pub(crate) fn peek_accepted(
    table: Table<'_>,
    connection: BorrowedFd<'_>,
    origin: ConnectionOrigin,
    judge: Option<&dyn ClientJudge>,
    buffer: &mut [u8],
) -> Option<PeekOutcome> {
    if origin.namespace.is_none() && socket_info::protocol(connection).is_none() {
        return Some(PeekOutcome::Ready(Admission {
            peer: origin.peer,
            client: None,
            counter: None,
        }));
    }
    let (check, mut step) = HeaderCheck::start(table.settings(), origin.peer);
    if step == Step::Peek {
        step = check.peeked(peek(connection, buffer));
    }
    if !matches!(step, Step::Store { .. }) && is_wakeup(table, connection, origin.peer) {
        return None;
    }
    Some(drive(table, connection, origin, judge, buffer, check, step))
}

/// Peeks again at a connection with an [incomplete](PeekOutcome::Incomplete) header, or at one that the library has parked for
/// `judge`.
pub(crate) fn peek_again(
    table: Table<'_>,
    connection: BorrowedFd<'_>,
    judge: Option<&dyn ClientJudge>,
    buffer: &mut [u8],
) -> PeekOutcome {
    match socket_info::peer_addr(connection) {
        Ok(peer) => {
            let namespace = None;
            let origin = ConnectionOrigin { peer, namespace };
            let (check, step) = HeaderCheck::start(table.settings(), peer);
            drive(table, connection, origin, judge, buffer, check, step)
        }
        // The connection was reset meanwhile and has no peer address any more.
        Err(_) => {
            table.settings().count(Counter::Closed);
            PeekOutcome::Refused
        }
    }
}

/// Counts a connection that is refused for another reason than its header, and records it for the log.
pub(crate) fn record_refusal(table: Table<'_>, connection: BorrowedFd<'_>, reason: Counter) {
    match socket_info::peer_addr(connection) {
        Ok(peer) => record(table, connection, peer, reason),
        Err(_) => table.settings().count(reason),
    }
}

/// Closes a connection with RST, so that its peer learns that its data was not processed.
pub(crate) fn close_with_reset(connection: impl AsFd) {
    // If this fails, the close sends FIN or, with unread data, RST: the peer notices in either case.
    let _ = stream::reset_on_close(connection);
}

/// Whether this is one of the header waiter's wake-up connections.
fn is_wakeup(table: Table<'_>, connection: BorrowedFd<'_>, peer: SocketAddr) -> bool {
    let mut received = [0; WAKEUP_SECRET_LEN];
    let peeked = peek(connection, &mut received);
    table.settings().is_wakeup(peeked, peer, || {
        local_addr(connection).ok().map(|local| local.ip())
    })
}

/// Drives the check until the connection is ready, incomplete or refused.
fn drive(
    table: Table<'_>,
    connection: BorrowedFd<'_>,
    origin: ConnectionOrigin,
    judge: Option<&dyn ClientJudge>,
    buffer: &mut [u8],
    check: HeaderCheck,
    mut step: Step,
) -> PeekOutcome {
    let mut client = None;
    let peer = origin.peer;
    let denial = |header: Option<&[u8]>| {
        let judge = judge?;
        let ends = ConnectionEnds::from_connection(connection, peer);
        judge.judge(ends, header).err()
    };
    let refuse = |peer, reason| {
        record(table, connection, peer, reason);
        PeekOutcome::Refused
    };
    loop {
        step = match step {
            Step::Peek => check.peeked(peek(connection, buffer)),
            Step::Store { len, named } => {
                if let Some(DeniedClient { client, reason }) = denial(buffer.get(..len)) {
                    return refuse(client, reason);
                }
                client = named.map(|(client, _)| client);
                let stored = match named {
                    Some(named) => store_client(table, connection, origin, named),
                    None => Ok(()),
                };
                check.stored(len, stored)
            }
            Step::Discard(len) => {
                check.discarded(stream::discard(connection, len).ok() == Some(len))
            }
            Step::Admit => {
                if let Some(client) = client {
                    let port = || listener_port(connection);
                    // No wake-up, as in `record`.
                    let _ = table.settings().record_stand_in(peer, client, port);
                }
                return PeekOutcome::Ready(Admission {
                    peer,
                    client,
                    counter: Some(Counter::Accepted),
                });
            }
            Step::PassThrough => {
                if let Some(DeniedClient { client, reason }) = denial(None) {
                    return refuse(client, reason);
                }
                return PeekOutcome::Ready(Admission {
                    peer,
                    client: None,
                    counter: Some(Counter::PassedThrough),
                });
            }
            Step::Wait(len) => return PeekOutcome::Incomplete(len),
            Step::Refuse(reason) => return refuse(peer, reason),
        }
    }
}

/// Peeks at the first bytes that a connection has received.
fn peek<'b>(connection: BorrowedFd<'_>, buffer: &'b mut [u8]) -> Peeked<'b> {
    match stream::peek(connection, buffer) {
        Ok(0) => Peeked::Closed,
        Ok(n) => Peeked::Bytes(buffer.get(..n).unwrap_or_default()),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Peeked::Nothing,
            _ => Peeked::Closed,
        },
    }
}

/// Stores a client in the table as the peer of this connection.
fn store_client(
    table: Table<'_>,
    connection: BorrowedFd<'_>,
    origin: ConnectionOrigin,
    (client, destination): HeaderAddresses,
) -> Result<(), NotStored> {
    let identity = Identity {
        client,
        destination,
        namespace: origin
            .namespace
            .unwrap_or_else(|| socket_info::netns_cookie(connection)),
    };
    let socket = ProgramSocket(connection);
    let multipath = origin.namespace.is_none() && socket.is_multipath();
    table.store(&socket, multipath, origin.peer, &identity)
}

/// Counts and records a refusal. `peer` is the client's address if the client was judged.
pub(super) fn record(
    table: Table<'_>,
    connection: BorrowedFd<'_>,
    peer: SocketAddr,
    reason: Counter,
) {
    let port = listener_port(connection);
    // No wake-up: this is the supervisor's thread, which reads refusals after each round of its event loop.
    let _ = table
        .settings()
        .record_refusal(Refusal { reason, peer, port });
}

fn listener_port(connection: BorrowedFd<'_>) -> u16 {
    local_addr(connection).map_or(0, |local| local.port())
}
