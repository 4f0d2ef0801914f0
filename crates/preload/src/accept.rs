//! Admits, parks or refuses a connection between the kernel's accept(2) and the program's.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use peername_identity::{
    Counter, HeaderAddresses, HeaderCheck, Identity, NotStored, Peeked, Refusal, Settings,
    SocketQueries, Step, Table, WaiterRequest, as_socket_family,
};
use peername_preload_common::address::RawAddress;
use peername_preload_common::kernel::{self, Endpoint, Errno, Result};
use peername_preload_common::socket::{Protocol, Socket};

use crate::{debug, imports, listener_cache, standalone, sweep, waiter_client};

/// Accepts until there is a connection for the program: one with a complete header, or one that needs none. Returns the
/// socket, and the address that the program is shown. A connection with an incomplete header is parked at the header
/// waiter; accept(2) never waits for it.
///
/// # Errors
///
/// The kernel's own, EAGAIN among them.
pub(crate) fn accept(
    table: Table<'_>,
    listener: c_int,
    flags: c_int,
) -> Result<(Socket, RawAddress)> {
    loop {
        let (fd, address) = imports::accept4(listener, flags)?;
        debug::say("accepted connection\n");
        let arrival = Arrival::new(Socket(fd), address);
        if let Some(accepted) = arrival.process(table, Socket(listener), flags)? {
            return Ok(accepted);
        }
    }
}

/// Returns the peer address of a connected socket, in the socket's address family: the client's if the connection's header
/// named one.
pub(crate) fn peer_of(table: Table<'_>, socket: Socket) -> Result<RawAddress> {
    let real = kernel::socket_name(socket.0, Endpoint::Peer)?;
    let peer = real.socket_addr();
    Ok(as_shown(table, socket, peer, real, |identity| {
        identity.client
    }))
}

/// Returns the client that the connection's header named, in the socket's address family.
pub(crate) fn client_of(table: Table<'_>, socket: Socket) -> Option<RawAddress> {
    let identity = table.look_up(&Queried(socket), socket.peer())?;
    let is_ipv6 = socket.local()?.is_ipv6();
    Some(RawAddress::new(as_socket_family(identity.client, is_ipv6)))
}

/// Returns the socket's own address: the header's destination if it named one.
pub(crate) fn own_of(table: Table<'_>, socket: Socket) -> Result<RawAddress> {
    let real = kernel::socket_name(socket.0, Endpoint::Local)?;
    let peer = socket.peer();
    Ok(as_shown(table, socket, peer, real, |identity| {
        identity.destination
    }))
}

/// `peer`: the real one, see [`Table::look_up`].
fn as_shown(
    table: Table<'_>,
    socket: Socket,
    peer: Option<SocketAddr>,
    real: RawAddress,
    end: impl Fn(&Identity) -> SocketAddr,
) -> RawAddress {
    let identity = || table.look_up(&Queried(socket), peer);
    match real
        .socket_addr()
        .and_then(|real| Some((real, identity()?)))
    {
        Some((real, identity)) => RawAddress::new(as_socket_family(end(&identity), real.is_ipv6())),
        None => real,
    }
}

/// A socket, queried for its key.
struct Queried(Socket);

impl SocketQueries for Queried {
    fn cookie(&self) -> Option<u64> {
        self.0.cookie()
    }

    fn inode(&self) -> Option<u64> {
        self.0.inode()
    }

    fn is_multipath(&self) -> bool {
        self.0.protocol() == Some(Protocol::Multipath)
    }
}

/// A connection as the kernel's accept4(2) returned it.
struct Arrival {
    socket: Socket,
    address: RawAddress,
}

impl Arrival {
    fn new(socket: Socket, address: RawAddress) -> Self {
        Self { socket, address }
    }

    /// Drives the header check of the connection. `None` if the program does not get it.
    fn process(
        self,
        table: Table<'_>,
        listener: Socket,
        flags: c_int,
    ) -> Result<Option<(Socket, RawAddress)>> {
        let settings = table.settings();
        let peer = self.address.socket_addr();
        let Some(from) = peer.and_then(|peer| self.origin(settings, listener, peer)) else {
            return Ok(Some((self.socket, self.address)));
        };
        let peer = from.peer;
        if self.is_wakeup(settings, peer) {
            self.socket.close();
            return take_ready(table, listener, flags);
        }
        let mut buffer = [0; PEEK];
        let (check, mut step) = HeaderCheck::start(settings, peer);
        if step == Step::Peek {
            step = self.peek(check, &mut buffer);
        }
        if standalone::is_standalone() {
            step = self.wait_standalone(check, &mut buffer, step);
        }
        if matches!(step, Step::PassThrough | Step::Refuse(Counter::NotAHeader)) {
            debug::say("error: not proxy protocol\n");
        }
        match step {
            // The header waiter has the lists of clients. A peer without a header is the client itself.
            Step::Store { .. } | Step::PassThrough if settings.policy().judged_by_waiter => {
                Ok(self.park(settings, peer, listener))
            }
            Step::Store { len, named } => {
                let named = named.filter(|_| standalone::believes(&buffer));
                self.admit(table, listener, from, check, &mut buffer, (len, named))
            }
            Step::Wait(_) => Ok(self.park(settings, peer, listener)),
            Step::Refuse(why) => Ok(self.refuse(settings, peer, why)),
            Step::PassThrough => {
                settings.count(Counter::PassedThrough);
                Ok(Some((self.socket, self.address)))
            }
            // They do not occur here.
            Step::Peek | Step::Discard(_) | Step::Admit => Ok(Some((self.socket, self.address))),
        }
    }

    /// `None` if no header is expected: it is not a TCP socket, or its port is not covered.
    fn origin(
        &self,
        settings: Settings<'_>,
        listener: Socket,
        peer: SocketAddr,
    ) -> Option<ConnectionOrigin> {
        if listener_cache::is_usual(settings, listener) {
            return Some(ConnectionOrigin {
                peer,
                namespace: settings.policy().namespace,
                multipath: false,
            });
        }
        // The connection's port: by now the listener may have been closed, and its descriptor may be another file.
        if !settings.covers(self.socket.local()?.port()) {
            return None;
        }
        Some(ConnectionOrigin {
            peer,
            multipath: self.socket.protocol()? == Protocol::Multipath,
            namespace: self.socket.namespace(),
        })
    }

    /// Whether this is a wake-up connection. Only the header waiter can connect from this host's address and one of its
    /// ports.
    fn is_wakeup(&self, settings: Settings<'_>, peer: SocketAddr) -> bool {
        let own = || self.socket.local().map(|own| own.ip());
        settings.wakeup_ports().contains(peer.port()) && own() == Some(peer.ip())
    }

    /// Stores the client, discards the header, and admits the connection.
    fn admit(
        self,
        table: Table<'_>,
        listener: Socket,
        from: ConnectionOrigin,
        check: HeaderCheck,
        buffer: &mut [u8],
        (len, named): (usize, Option<HeaderAddresses>),
    ) -> Result<Option<(Socket, RawAddress)>> {
        let settings = table.settings();
        let stored = self.store(table, from, named);
        let mut step = check.stored(len, stored.map(drop));
        if let Step::Discard(len) = step {
            step = check.discarded(self.socket.discard(buffer, len));
        }
        match (step, stored) {
            (Step::Admit, Ok(shown)) => {
                settings.count(Counter::Accepted);
                if let Some((client, _)) = named {
                    debug::say_client(from.peer, client);
                }
                Ok(Some((self.socket, shown)))
            }
            // The header is still unread: the header waiter sweeps a full table, peeks again, and refuses the connection
            // if the table is still full, or has its key.
            (Step::Refuse(Counter::Full | Counter::KeyInUse), _)
                if !standalone::is_standalone() =>
            {
                Ok(self.park(settings, from.peer, listener))
            }
            (Step::Refuse(why), _) => Ok(self.refuse(settings, from.peer, why)),
            _ => Ok(self.refuse(settings, from.peer, Counter::Closed)),
        }
    }

    /// Waits for the rest of a header inside accept(2), for [`standalone::PIECES`] at most. A peer that has sent nothing
    /// may be waiting for the server to speak first.
    fn wait_standalone(&self, check: HeaderCheck, buffer: &mut [u8], first: Step) -> Step {
        let (pieces, milliseconds) = standalone::PIECES;
        let mut step = first;
        for _ in 0..pieces {
            let Step::Wait(bytes) = step else {
                return step;
            };
            self.socket.wait_received(bytes, milliseconds);
            step = self.peek(check, buffer);
        }
        match step {
            Step::Wait(_) if self.socket.peek(buffer) == Ok(Some(0)) => {
                check.without_header(Counter::NotAHeader)
            }
            Step::Wait(_) => Step::Refuse(Counter::Late),
            step => step,
        }
    }

    fn peek(&self, check: HeaderCheck, buffer: &mut [u8]) -> Step {
        check.peeked(match self.socket.peek(buffer) {
            Ok(Some(n)) => Peeked::Bytes(buffer.get(..n).unwrap_or_default()),
            Ok(None) | Err(_) => Peeked::Closed,
        })
    }

    /// Stores the client, and returns the address that the program is shown.
    fn store(
        &self,
        table: Table<'_>,
        from: ConnectionOrigin,
        named: Option<HeaderAddresses>,
    ) -> core::result::Result<RawAddress, NotStored> {
        let settings = table.settings();
        let Some((client, destination)) = named else {
            return Ok(self.address);
        };
        let identity = Identity {
            client,
            destination,
            namespace: from.namespace,
        };
        let socket = Queried(self.socket);
        let insert = || table.store(&socket, from.multipath, from.peer, &identity);
        match insert() {
            Err(NotStored::Full | NotStored::KeyInUse) if standalone::is_standalone() => {
                // Twice: the first sweep spares entries that are newer than the sweep before it.
                sweep::sweep(table);
                sweep::sweep(table);
                insert()?;
            }
            inserted => inserted?,
        }
        match settings.claim_sweep() {
            true if standalone::is_standalone() => sweep::sweep(table),
            true => waiter_client::notify(WaiterRequest::Sweep),
            false => {}
        }
        Ok(RawAddress::new(as_socket_family(
            client,
            from.peer.is_ipv6(),
        )))
    }

    fn park(
        self,
        settings: Settings<'_>,
        peer: SocketAddr,
        listener: Socket,
    ) -> Option<(Socket, RawAddress)> {
        if waiter_client::park(self.socket, listener).is_err() {
            return self.refuse(settings, peer, Counter::WaiterUnreachable);
        }
        settings.count(Counter::Parked);
        self.socket.close();
        None
    }

    fn refuse(
        self,
        settings: Settings<'_>,
        peer: SocketAddr,
        why: Counter,
    ) -> Option<(Socket, RawAddress)> {
        debug::say("dropping connection\n");
        let port = self.socket.local().map_or(0, |own| own.port());
        self.socket.reset();
        if settings.record_refusal(Refusal { why, peer, port }) && !standalone::is_standalone() {
            waiter_client::notify(WaiterRequest::Log);
        }
        None
    }
}

/// The real peer of a connection, the network namespace in which a sweep finds it, and whether it is MPTCP.
#[derive(Clone, Copy)]
struct ConnectionOrigin {
    peer: SocketAddr,
    namespace: u64,
    multipath: bool,
}

/// Takes the ready connection that the listener was woken for; `None` if another process has taken it already.
fn take_ready(
    table: Table<'_>,
    listener: Socket,
    flags: c_int,
) -> Result<Option<(Socket, RawAddress)>> {
    match waiter_client::take(listener, flags) {
        Ok(Some(socket)) => Ok(Some((socket, ready_peer(table, socket)))),
        // No descriptor is free: accept(2) fails with that error, and the connection stays at the header waiter.
        Err(error @ (Errno::EMFILE | Errno::ENFILE)) => Err(error),
        Ok(None) | Err(_) => Ok(None),
    }
}

/// The peer address to show for a ready connection. One that was reset has no peer any more, but its client may still be in
/// the table. The kernel, too, would return such a connection.
fn ready_peer(table: Table<'_>, socket: Socket) -> RawAddress {
    let unspecified: IpAddr = match socket.local() {
        Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    };
    let real = kernel::socket_name(socket.0, Endpoint::Peer)
        .unwrap_or_else(|_| RawAddress::new(SocketAddr::new(unspecified, 0)));
    as_shown(table, socket, socket.peer(), real, |identity| {
        identity.client
    })
}

/// Bytes of the peek buffer. Longer headers go to the header waiter, which has a larger buffer. This one is on the stack,
/// which is small in some programs' threads.
const PEEK: usize = 4096;
