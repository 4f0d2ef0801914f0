//! One look at a connection that a server has accepted: is its header there?
//!
//! The header is looked at in the socket's own buffer and taken off only when it is complete, so a
//! look that does not find it all leaves the connection as it was.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use peername_identity::{Counter, Ends, Full, HeaderCheck, Identity, Peeked, Refusal, Step, Table};
use peername_sys::socket::upstream::local_addr;
use peername_sys::tcp::{socket_info, stream};

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The program may have it: the header is gone, and the client, if it named one, in the table; or no
    /// header was to be expected.
    Ready(Option<SocketAddr>),
    /// The header is not all there: it takes at least so many octets.
    Unfinished(usize),
    /// The program must not see it. Counted and left for the log; to be closed with [`refuse`].
    Refused,
}

/// Where a connection has come from.
#[derive(Clone, Copy, Debug)]
pub struct From {
    /// Its peer, which may send a header or not.
    pub peer: SocketAddr,
    /// Its network namespace if it is one of TCP; `None` if it is to be asked.
    pub namespace: Option<u64>,
}

/// Looks at a connection that was just accepted by a listener that expects headers: may its peer send one,
/// and is it there?
///
/// `buffer` is room for the largest header ([`peername_identity::Policy::max_header`]). Never blocks.
pub fn look_at_new(
    table: Table<'_>,
    connection: BorrowedFd<'_>,
    from: From,
    buffer: &mut [u8],
) -> Look {
    if from.namespace.is_none() && socket_info::protocol(connection).is_none() {
        return Look::Ready(None);
    }
    let (check, step) = HeaderCheck::start(table.settings(), from.peer);
    run(table, connection, from, check, step, buffer)
}

/// Looks at a connection whose header [`look_at_new`] has found unfinished.
pub fn look_again(table: Table<'_>, connection: BorrowedFd<'_>, buffer: &mut [u8]) -> Look {
    let namespace = None;
    match socket_info::peer_addr(connection) {
        Ok(peer) => {
            let check = HeaderCheck::resume(table.settings(), peer);
            let from = From { peer, namespace };
            run(table, connection, from, check, Step::Peek, buffer)
        }
        // Reset meanwhile: nobody can say any more where it came from.
        Err(_) => {
            table.settings().count(Counter::Closed);
            Look::Refused
        }
    }
}

/// Counts a connection that is refused for another reason than a look, and leaves it for the log.
pub fn report_refusal(table: Table<'_>, connection: BorrowedFd<'_>, why: Counter) {
    match socket_info::peer_addr(connection) {
        Ok(peer) => _ = refused(table, connection, peer, why),
        Err(_) => table.settings().count(why),
    }
}

/// Closes a connection with RST: its peer shall know that nobody has taken what it sent.
pub fn refuse(connection: impl AsFd) {
    // Without it the close sends FIN or, if there is something unread, RST: the peer learns either way.
    let _ = stream::reset_on_close(connection);
}

/// Does what the check says, until the connection is ready, incomplete or refused.
fn run(
    table: Table<'_>,
    connection: BorrowedFd<'_>,
    from: From,
    check: HeaderCheck,
    first: Step,
    buffer: &mut [u8],
) -> Look {
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
                return Look::Ready(client);
            }
            Step::PassThrough => return Look::Ready(None),
            Step::Wait(len) => return Look::Unfinished(len),
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

/// Puts a client into the table as the one at the other end of this connection.
///
/// # Errors
///
/// [`Full`], also when the socket can't be asked for its number: the connection must be
/// refused then.
fn remember(
    table: Table<'_>,
    connection: BorrowedFd<'_>,
    from: From,
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

fn refused(table: Table<'_>, connection: BorrowedFd<'_>, peer: SocketAddr, why: Counter) -> Look {
    let port = local_addr(connection).map_or(0, |own| own.port());
    // The supervisor, whose thread this is, looks for it after each round of its loop.
    let _ = table.settings().refused(Refusal { why, peer, port });
    Look::Refused
}

fn namespace(connection: BorrowedFd<'_>) -> u64 {
    match socket_info::protocol(connection) {
        Some(socket_info::StreamProtocol::Tcp) => socket_info::netns_cookie(connection),
        // A sweep would not find it among the TCP sockets, and take it for closed.
        Some(socket_info::StreamProtocol::Multipath) | None => 0,
    }
}
