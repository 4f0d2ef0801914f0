//! Peeks at the header of an accepted connection: the driver of [`HeaderCheck`] with this crate's system calls.
//!
//! The header is peeked at in the socket's own buffer and taken off only when it is complete, so a peek at an incomplete
//! header leaves the connection as it was.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use peername_identity::{Counter, Ends, Full, HeaderCheck, Identity, Peeked, Refusal, Step, Table};
use peername_sys::socket::upstream::local_addr;
use peername_sys::tcp::{socket_info, stream};

/// The result of a peek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeekOutcome {
    /// The program may have the connection: the header is gone, and the client, if it named one, is in the table; or no
    /// header was expected.
    Ready(Option<SocketAddr>),
    /// The header is incomplete: it takes at least so many bytes.
    Incomplete(usize),
    /// The program must not see it. It was counted and recorded for the log; close it with [`refuse`].
    Refused,
}

/// The origin of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionOrigin {
    /// Its peer, which may be trusted to send headers or not.
    pub peer: SocketAddr,
    /// Its network namespace, for TCP; `None` if the kernel is still to be asked.
    pub namespace: Option<u64>,
}

/// Peeks at a connection that was just accepted by a listener that expects headers: is its peer trusted, and is the header
/// complete?
///
/// `buffer` is room for the largest header ([`peername_identity::Policy::max_header`]). Never blocks.
pub fn peek_accepted(
    table: Table<'_>,
    connection: BorrowedFd<'_>,
    from: ConnectionOrigin,
    buffer: &mut [u8],
) -> PeekOutcome {
    if from.namespace.is_none() && socket_info::protocol(connection).is_none() {
        return PeekOutcome::Ready(None);
    }
    let (check, step) = HeaderCheck::start(table.settings(), from.peer);
    run(table, connection, from, check, step, buffer)
}

/// Peeks again at a connection whose header was [incomplete](PeekOutcome::Incomplete).
pub fn peek_again(table: Table<'_>, connection: BorrowedFd<'_>, buffer: &mut [u8]) -> PeekOutcome {
    let namespace = None;
    match socket_info::peer_addr(connection) {
        Ok(peer) => {
            let check = HeaderCheck::resume(table.settings(), peer);
            let from = ConnectionOrigin { peer, namespace };
            run(table, connection, from, check, Step::Peek, buffer)
        }
        // Reset meanwhile: its peer can't be asked any more.
        Err(_) => {
            table.settings().count(Counter::Closed);
            PeekOutcome::Refused
        }
    }
}

/// Counts a connection that is refused for another reason than its header, and records it for the log.
pub fn record_refusal(table: Table<'_>, connection: BorrowedFd<'_>, why: Counter) {
    match socket_info::peer_addr(connection) {
        Ok(peer) => _ = refused(table, connection, peer, why),
        Err(_) => table.settings().count(why),
    }
}

/// Closes a connection with RST, so that its peer learns that its data was not taken.
pub fn refuse(connection: impl AsFd) {
    // Without it the close sends FIN or, if there is something unread, RST: the peer learns either way.
    let _ = stream::reset_on_close(connection);
}

/// Drives the check until the connection is ready, incomplete or refused.
fn run(
    table: Table<'_>,
    connection: BorrowedFd<'_>,
    from: ConnectionOrigin,
    check: HeaderCheck,
    first: Step,
    buffer: &mut [u8],
) -> PeekOutcome {
    let (mut step, mut client) = (first, None);
    loop {
        step = match step {
            Step::Peek => check.peeked(peek(connection, buffer)),
            Step::Store { len, named } => {
                client = named.map(|(client, _)| client);
                let store = |named| remember(table, connection, from, named);
                check.stored(len, named.map_or(Ok(()), store))
            }
            Step::Discard(len) => {
                check.discarded(stream::discard(connection, len).ok() == Some(len))
            }
            Step::Admit => {
                table.settings().count(Counter::Accepted);
                return PeekOutcome::Ready(client);
            }
            Step::PassThrough => return PeekOutcome::Ready(None),
            Step::Wait(len) => return PeekOutcome::Incomplete(len),
            Step::Refuse(why) => return refused(table, connection, from.peer, why),
        }
    }
}

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
///
/// # Errors
///
/// [`Full`], also when the socket's cookie can't be read: the connection must be refused then.
fn remember(
    table: Table<'_>,
    connection: BorrowedFd<'_>,
    from: ConnectionOrigin,
    (client, destination): Ends,
) -> Result<(), Full> {
    let cookie = socket_info::cookie(connection).map_err(|_| Full)?;
    let identity = Identity {
        client,
        destination,
        namespace: from.namespace.unwrap_or_else(|| namespace(connection)),
    };
    table.insert(cookie, &identity)
}

fn refused(
    table: Table<'_>,
    connection: BorrowedFd<'_>,
    peer: SocketAddr,
    why: Counter,
) -> PeekOutcome {
    let port = local_addr(connection).map_or(0, |own| own.port());
    // The supervisor, whose thread this is, reads it after each round of its loop.
    let _ = table.settings().refused(Refusal { why, peer, port });
    PeekOutcome::Refused
}

fn namespace(connection: BorrowedFd<'_>) -> u64 {
    match socket_info::protocol(connection) {
        Some(socket_info::StreamProtocol::Tcp) => socket_info::netns_cookie(connection),
        // A sweep would not find it among the TCP sockets, and would take it for closed.
        Some(socket_info::StreamProtocol::Multipath) | None => 0,
    }
}
