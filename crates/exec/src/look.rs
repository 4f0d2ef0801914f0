//! One look at a connection that a server has accepted: is its header there?
//!
//! The header is looked at in the socket's own buffer and taken off only when it is complete, so a
//! look that does not find it all leaves the connection as it was.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use peername_identity::{Counter, Full, Identity, Table, Verdict};
use peername_sys::upstream::local_addr;
use peername_sys::{stream, tcp_socket};

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The program may have it: the header is gone, and the client in the table if it named one; or no
    /// header was to be expected.
    Ready,
    /// The header is not all there: it takes at least so many octets.
    Unfinished(usize),
    /// The program must not see it. Counted; to be closed with [`refuse`].
    Refused,
}

/// Looks at a connection that was just accepted: is its listener one of those that expect headers, may
/// its peer send one, and is it there?
///
/// `buffer` is room for the largest header ([`peername_identity::Policy::max_header`]). Never blocks.
pub fn look_at_new(table: Table<'_>, connection: BorrowedFd<'_>, buffer: &mut [u8]) -> Look {
    let (Some(local), Some(peer)) = ends(connection) else {
        // Not of the Internet, or closed already, which the program may find out itself.
        return Look::Ready;
    };
    let settings = table.settings();
    if tcp_socket::protocol(connection).is_none() || !settings.covers(local.port()) {
        return Look::Ready;
    }
    if !settings.trusts(peer.ip()) {
        let verdict = settings.policy().without_header(Counter::Untrusted);
        return act(table, connection, verdict);
    }
    look(table, connection, peer, buffer)
}

/// Looks at a connection whose header [`look_at_new`] has found unfinished.
pub fn look_again(table: Table<'_>, connection: BorrowedFd<'_>, buffer: &mut [u8]) -> Look {
    match ends(connection) {
        (_, Some(peer)) => look(table, connection, peer, buffer),
        // Closed meanwhile.
        (_, None) => refused(table, Counter::NotAHeader),
    }
}

/// Closes a connection with RST: its peer shall know that nobody has taken what it sent.
pub fn refuse(connection: impl AsFd) {
    // Without it the close sends FIN or, if there is something unread, RST: the peer learns either way.
    let _ = stream::reset_on_close(connection);
}

fn look(table: Table<'_>, connection: BorrowedFd<'_>, peer: SocketAddr, buffer: &mut [u8]) -> Look {
    let received = match stream::peek(connection, buffer) {
        Ok(0) => return refused(table, Counter::NotAHeader),
        Ok(n) => n,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Look::Unfinished(1),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Look::Unfinished(1),
        Err(_) => return refused(table, Counter::NotAHeader),
    };
    let seen = buffer.get(..received).unwrap_or_default();
    let verdict = table.settings().policy().judge(seen, peer);
    act(table, connection, verdict)
}

fn act(table: Table<'_>, connection: BorrowedFd<'_>, verdict: Verdict) -> Look {
    match verdict {
        Verdict::Header { len, named } => take(table, connection, len, named),
        Verdict::Unfinished(len) => Look::Unfinished(len),
        Verdict::Plain => Look::Ready,
        Verdict::Refuse(why) => refused(table, why),
    }
}

/// Takes the header off the socket and remembers whom it names.
fn take(
    table: Table<'_>,
    connection: BorrowedFd<'_>,
    len: usize,
    named: Option<(SocketAddr, SocketAddr)>,
) -> Look {
    if let Err(Full) = named.map_or(Ok(()), |named| remember(table, connection, named)) {
        return refused(table, Counter::Full);
    }
    if stream::discard(connection, len).ok() != Some(len) {
        return refused(table, Counter::NotAHeader);
    }
    table.settings().count(Counter::Accepted);
    Look::Ready
}

/// Puts a client into the table as the one at the other end of this connection.
///
/// # Errors
///
/// [`Full`], also when the socket can't be asked for its number: the connection must be
/// refused then.
pub fn remember(
    table: Table<'_>,
    connection: BorrowedFd<'_>,
    (client, destination): (SocketAddr, SocketAddr),
) -> Result<(), Full> {
    let cookie = tcp_socket::cookie(connection).map_err(|_| Full)?;
    let multipath = tcp_socket::protocol(connection) == Some(tcp_socket::Protocol::Multipath);
    let identity = Identity {
        client,
        destination,
        // A sweep would not find it among the TCP sockets, and take it for closed.
        namespace: if multipath {
            0
        } else {
            tcp_socket::namespace(connection)
        },
    };
    table.insert(cookie, &identity)
}

fn refused(table: Table<'_>, why: Counter) -> Look {
    table.settings().count(why);
    Look::Refused
}

/// The socket's own end and the other one; `None` where they are not of the Internet.
fn ends(connection: BorrowedFd<'_>) -> (Option<SocketAddr>, Option<SocketAddr>) {
    let peer = tcp_socket::peer_addr(connection);
    (local_addr(connection).ok(), peer.ok())
}
