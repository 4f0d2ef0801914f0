//! Admits, parks or refuses a connection between the kernel's accept(2) and the program's.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use peername_identity::{
    Counter, HeaderAddresses, HeaderCheck, Identity, NotStored, Peeked, Refusal, SocketQueries,
    Step, Table, WAKEUP_SECRET_LEN, WaiterRequest, as_socket_family,
};
use peername_preload_common::address::RawAddress;
use peername_preload_common::kernel::{self, Endpoint, Errno, Result};
use peername_preload_common::socket::{Protocol, Socket};

use crate::{debug, imports, listener_cache, standalone, sweep, waiter_client};

/// Accepts until there is a connection for the program: one with a complete header, or one that needs none. Returns the
/// socket, and the peer address that the program is shown. A connection with an incomplete header is parked at the header
/// waiter; accept(2) never waits for it.
pub(crate) fn accept(
    table: Table<'_>,
    listener: c_int,
    flags: c_int,
) -> Result<(Socket, RawAddress)> {
    let mut began = None;
    loop {
        let (fd, address) = imports::accept4(listener, flags)?;
        debug::log("accepted connection\n");
        let arrival = Arrival {
            table,
            listener: Socket(listener),
            flags,
            socket: Socket(fd),
            address,
        };
        if let Some(accepted) = arrival.process()? {
            return Ok(accepted);
        }
        // The next accept4(2) would wait for the whole timeout again. It still does if another process takes the connection. The
        // timeout is counted from the first such connection, so that the others take no system call for the clock.
        if let Some(timeout) = Socket(listener).receive_timeout() {
            let now = kernel::monotonic_time();
            let deadline = began.get_or_insert(now).saturating_add(timeout);
            imports::wait_acceptable(listener, deadline.saturating_sub(now).max(0))?;
        }
    }
}

/// Returns the peer address of a connected socket, in the socket's address family: the client's if the connection's header
/// named one.
pub(crate) fn peer_name(table: Table<'_>, socket: Socket) -> Result<RawAddress> {
    let real = kernel::socket_name(socket.0, Endpoint::Peer)?;
    Ok(shown_client(table, socket, real.socket_addr(), real))
}

/// Returns the client that the connection's header named, in the socket's address family.
pub(crate) fn client_name(table: Table<'_>, socket: Socket) -> Option<RawAddress> {
    let identity = table.look_up(&ProgramSocket(socket), socket.peer())?;
    let is_ipv6 = socket.local()?.is_ipv6();
    Some(RawAddress::new(as_socket_family(identity.client, is_ipv6)))
}

/// Returns the socket's local address: the header's destination if it named one.
pub(crate) fn local_name(table: Table<'_>, socket: Socket) -> Result<RawAddress> {
    let real = kernel::socket_name(socket.0, Endpoint::Local)?;
    Ok(shown_address(
        table,
        socket,
        socket.peer(),
        real,
        |identity| identity.destination,
    ))
}

/// The address that the program is shown as its peer.
fn shown_client(
    table: Table<'_>,
    socket: Socket,
    peer: Option<SocketAddr>,
    real: RawAddress,
) -> RawAddress {
    shown_address(table, socket, peer, real, |identity| identity.client)
}

/// The address that the program is shown in place of `real`: one of the identity of the socket's peer, if it has an identity.
/// `peer` is the real one, see [`Table::look_up`].
fn shown_address(
    table: Table<'_>,
    socket: Socket,
    peer: Option<SocketAddr>,
    real: RawAddress,
    select: impl Fn(&Identity) -> SocketAddr,
) -> RawAddress {
    let Some(real_addr) = real.socket_addr() else {
        return real;
    };
    match table.look_up(&ProgramSocket(socket), peer) {
        Some(identity) => {
            let shown = as_socket_family(select(&identity), real_addr.is_ipv6());
            RawAddress::new(shown)
        }
        None => real,
    }
}

/// A socket of the program, as the table queries it.
struct ProgramSocket(Socket);

impl SocketQueries for ProgramSocket {
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
struct Arrival<'t> {
    table: Table<'t>,
    listener: Socket,
    /// The flags of the program's accept4(2).
    flags: c_int,
    socket: Socket,
    address: RawAddress,
}

impl Arrival<'_> {
    /// Admits, parks or refuses the connection. `None` if the program does not get it.
    fn process(self) -> Result<Option<(Socket, RawAddress)>> {
        let Some(origin) = self.origin() else {
            return Ok(Some((self.socket, self.address)));
        };
        let mut buffer = [0; PEEK_BUFFER];
        let (check, step) = self.check_header(origin.peer, &mut buffer);
        if !matches!(step, Step::Store { .. }) && self.is_wakeup(origin.peer) {
            self.socket.close();
            return take_ready(self.table, self.listener, self.flags);
        }
        let settings = self.table.settings();
        Ok(match step {
            // The header waiter has the lists of clients. A peer without a header is the client itself.
            Step::Store { .. } | Step::PassThrough if settings.policy().judged_by_waiter => {
                self.park(origin.peer)
            }
            Step::Store { len, named } => {
                let named = named.filter(|_| standalone::accepts_version(&buffer));
                self.admit(origin, check, &mut buffer, len, named)
            }
            Step::Wait(_) => self.park(origin.peer),
            Step::Refuse(reason) => self.refuse(origin.peer, reason),
            Step::PassThrough => {
                settings.count(Counter::PassedThrough);
                Some((self.socket, self.address))
            }
            // The check returns none of these steps after a peek. If it did, the peer would be unknown.
            Step::Peek | Step::Discard(_) | Step::Admit => {
                self.socket.close();
                None
            }
        })
    }

    /// `None` if no header is expected: the connection is not TCP, or its port is not covered.
    fn origin(&self) -> Option<ConnectionOrigin> {
        let settings = self.table.settings();
        let peer = self.address.socket_addr()?;
        if listener_cache::is_covered_tcp(settings, self.listener) {
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

    /// Whether this is one of the header waiter's wake-up connections, which have no header.
    fn is_wakeup(&self, peer: SocketAddr) -> bool {
        let mut received = [0; WAKEUP_SECRET_LEN];
        let peeked = self.peek(&mut received);
        self.table
            .settings()
            .is_wakeup(peeked, peer, || self.socket.local().map(|local| local.ip()))
    }

    /// Runs the header check up to the step that decides what becomes of the connection.
    fn check_header(&self, peer: SocketAddr, buffer: &mut [u8]) -> (HeaderCheck, Step) {
        let (check, mut step) = HeaderCheck::start(self.table.settings(), peer);
        if step == Step::Peek {
            step = check.peeked(self.peek(buffer));
        }
        if standalone::is_standalone() {
            step = self.wait_standalone(check, buffer, step);
        }
        if matches!(step, Step::PassThrough | Step::Refuse(Counter::NotAHeader)) {
            debug::log("error: not proxy protocol\n");
        }
        (check, step)
    }

    fn peek<'b>(&self, buffer: &'b mut [u8]) -> Peeked<'b> {
        match self.socket.peek(buffer) {
            Ok(Some(n)) => Peeked::Bytes(buffer.get(..n).unwrap_or_default()),
            Ok(None) | Err(_) => Peeked::Closed,
        }
    }

    /// Waits for the rest of a header inside accept(2), for [`standalone::MAX_WAITS`] at most. A peer that has sent nothing
    /// may be waiting for the server to speak first.
    fn wait_standalone(&self, check: HeaderCheck, buffer: &mut [u8], first: Step) -> Step {
        let mut step = first;
        for _ in 0..standalone::MAX_WAITS {
            let Step::Wait(bytes) = step else {
                return step;
            };
            self.socket.wait_received(bytes, standalone::WAIT_MS);
            step = check.peeked(self.peek(buffer));
        }
        match step {
            Step::Wait(_) if self.socket.peek(buffer) == Ok(Some(0)) => {
                check.without_header(Counter::NotAHeader)
            }
            Step::Wait(_) => Step::Refuse(Counter::Late),
            step => step,
        }
    }

    /// Stores the client, discards the header of `len` bytes, and admits the connection.
    fn admit(
        self,
        origin: ConnectionOrigin,
        check: HeaderCheck,
        buffer: &mut [u8],
        len: usize,
        named: Option<HeaderAddresses>,
    ) -> Option<(Socket, RawAddress)> {
        let stored = self.store(origin, named);
        let mut step = check.stored(len, stored.map(drop));
        if let Step::Discard(len) = step {
            step = check.discarded(self.socket.discard(buffer, len));
        }
        match (step, stored) {
            (Step::Admit, Ok(shown)) => {
                self.table.settings().count(Counter::Accepted);
                if let Some((client, _)) = named {
                    debug::log_addresses(origin.peer, client);
                    self.record_stand_in(origin.peer, client);
                }
                Some((self.socket, shown))
            }
            // The header is still unread: the header waiter sweeps a full table, peeks again, and refuses the connection
            // if the table is still full or still has the key.
            (Step::Refuse(Counter::Full | Counter::KeyInUse), _)
                if !standalone::is_standalone() =>
            {
                self.park(origin.peer)
            }
            (Step::Refuse(reason), _) => self.refuse(origin.peer, reason),
            // The check returns no other step here.
            _ => self.refuse(origin.peer, Counter::Closed),
        }
    }

    /// Stores the client, and returns the address that the program is shown.
    fn store(
        &self,
        origin: ConnectionOrigin,
        named: Option<HeaderAddresses>,
    ) -> core::result::Result<RawAddress, NotStored> {
        let table = self.table;
        let Some((client, destination)) = named else {
            return Ok(self.address);
        };
        let identity = Identity {
            client,
            destination,
            namespace: origin.namespace,
        };
        let socket = ProgramSocket(self.socket);
        let store = || table.store(&socket, origin.multipath, origin.peer, &identity);
        match store() {
            Err(NotStored::Full | NotStored::KeyInUse) if standalone::is_standalone() => {
                // Twice: the first sweep spares entries that are newer than the sweep before it.
                sweep::sweep(table);
                sweep::sweep(table);
                store()?;
            }
            stored => stored?,
        }
        if table.settings().claim_sweep() {
            if standalone::is_standalone() {
                sweep::sweep(table);
            } else {
                waiter_client::notify(WaiterRequest::Sweep);
            }
        }
        let shown = as_socket_family(client, origin.peer.is_ipv6());
        Ok(RawAddress::new(shown))
    }

    fn record_stand_in(&self, peer: SocketAddr, client: SocketAddr) {
        let port = || self.socket.local().map_or(0, |local| local.port());
        let settings = self.table.settings();
        if settings.record_stand_in(peer, client, port) && !standalone::is_standalone() {
            waiter_client::notify(WaiterRequest::Log);
        }
    }

    fn park(self, peer: SocketAddr) -> Option<(Socket, RawAddress)> {
        if waiter_client::park(self.socket, self.listener).is_err() {
            return self.refuse(peer, Counter::WaiterUnreachable);
        }
        self.table.settings().count(Counter::Parked);
        self.socket.close();
        None
    }

    fn refuse(self, peer: SocketAddr, reason: Counter) -> Option<(Socket, RawAddress)> {
        debug::log("dropping connection\n");
        let port = self.socket.local().map_or(0, |local| local.port());
        self.socket.reset();
        let refusal = Refusal { reason, peer, port };
        if self.table.settings().record_refusal(refusal) && !standalone::is_standalone() {
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

/// Takes a ready connection of this listener, which a wake-up connection has announced; `None` if another process has taken
/// it already.
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

/// The peer address to show for a ready connection. A connection that was reset has no peer any more, but its client may still
/// be in the table. The kernel's accept(2), too, returns such connections.
fn ready_peer(table: Table<'_>, socket: Socket) -> RawAddress {
    let unspecified: IpAddr = match socket.local() {
        Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    };
    let real = kernel::socket_name(socket.0, Endpoint::Peer)
        .unwrap_or_else(|_| RawAddress::new(SocketAddr::new(unspecified, 0)));
    shown_client(table, socket, socket.peer(), real)
}

/// Bytes of the peek buffer. Longer headers go to the header waiter, which has a larger buffer. This one is on the stack,
/// which is small in some programs' threads.
const PEEK_BUFFER: usize = 4096;
