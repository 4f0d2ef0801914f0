//! Verifies that a backend sees the client's address, as far as this host decides.
//!
//! NAT rules of this host apply to the proxy's own connections, too: `-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE` replaces
//! the source of a connection over loopback or to a container, and the proxy's own socket does not show that. So before a byte
//! is sent, the socket of a backend on this host is looked up by the addresses that it must have. For a backend elsewhere, a
//! probe shows with which source packets leave.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::num::NonZeroU32;

use peername_server::addr::{Target, canonical};
use peername_sys::Result as SysResult;
use peername_sys::Transport;
use peername_sys::netlink::{SocketLookup, TcpLookup};
use peername_sys::tcp::original_destination;
use peername_sys::throttle::Throttle;
use tokio::net::TcpStream;

use crate::backend::Backend;
use crate::nat_probe::probe_egress;
use crate::outcome::Failure;

/// The backend's end of a connection from a client's address.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerSide {
    backend: SocketAddr,
    client: SocketAddr,
    /// Whether the proxy's socket has IPv4-mapped IPv6 addresses.
    is_mapped: bool,
    /// Whether the backend is on this host, where its socket can be looked up.
    is_on_this_host: bool,
}

impl ServerSide {
    pub(super) fn new(target: Target, client: SocketAddr, is_on_this_host: bool) -> Self {
        let backend = canonical(target.0);
        Self {
            backend,
            client: canonical(client),
            is_mapped: backend.is_ipv4() != target.0.is_ipv4(),
            is_on_this_host,
        }
    }

    /// Whether the backend is known to see the client, without a probe. That is not known while the accept backlog of a backend
    /// on this host is full, nor for a tracked connection to a backend on another host.
    ///
    /// A connection that is not tracked is not translated either, and that check takes a third of the time of a lookup.
    pub(super) fn sees_client(self, upstream: &TcpStream) -> Result<bool, Failure> {
        let tracked = original_destination(upstream, self.backend.is_ipv6());
        if !self.is_mapped && matches!(tracked, Ok(None)) {
            return Ok(true);
        }
        if !self.is_on_this_host {
            return Ok(false);
        }
        let found = find_socket(self.backend, self.client).map_err(Failure::Local)?;
        Ok(found == TcpLookup::Connection)
    }

    /// Verifies the client's address of an established connection.
    ///
    /// If the lookup finds a listener instead of the connection, a probe must show the client's address. The source may still
    /// be unchanged: with SYN cookies and a full accept backlog there is no socket before the first data, and a rule may
    /// redirect only the destination. If the lookup finds neither, the connection ends in another network namespace, or the
    /// kernel can't look up sockets. Then the connection is refused only if the probe shows another source.
    pub(super) fn verify(
        self,
        upstream: &TcpStream,
        mark: Option<NonZeroU32>,
    ) -> Result<(), Failure> {
        if self.sees_client(upstream)? {
            return Ok(());
        }
        if !self.is_on_this_host {
            return self.verify_egress(mark);
        }
        if upstream.peer_addr().is_err() {
            // The connection was reset meanwhile.
            return Ok(());
        }
        let Self {
            backend, client, ..
        } = self;
        if find_socket(backend, client).map_err(Failure::Local)? == TcpLookup::Missing {
            return self.verify_egress(mark);
        }
        match probe_egress(Backend::new(backend, Transport::Tcp), mark, client) {
            Ok(Some(seen)) if seen.source == client => Ok(()),
            // Only a listener was found, and the probe did not show the client's address: so the backend sees another one.
            _ => Err(Failure::SourceTranslated {
                client,
                target: backend,
            }),
        }
    }

    /// Verifies by a probe that packets leave with the client's address ([`verify_emitted`]).
    pub(super) fn verify_egress(self, mark: Option<NonZeroU32>) -> Result<(), Failure> {
        let backend = Backend::new(self.backend, Transport::Tcp);
        verify_emitted(backend, mark, self.client)
    }
}

/// Verifies by a probe that packets from `client` to a backend leave with that source. Succeeds where the probe can't tell; if
/// a system call failed, that is logged.
pub(super) fn verify_emitted(
    backend: Backend,
    mark: Option<NonZeroU32>,
    client: SocketAddr,
) -> Result<(), Failure> {
    let target = backend.address;
    match probe_egress(backend, mark, client) {
        Ok(Some(seen)) if seen.source != client => {
            Err(Failure::SourceTranslated { client, target })
        }
        Ok(_) => Ok(()),
        Err(error) => {
            if let Some(suppressed) = PROBE_FAILED_LOG.pass() {
                tracing::warn!(
                    suppressed,
                    "can't tell whether NAT rules replace the address of {client} towards {target}: {error}"
                );
            }
            Ok(())
        }
    }
}

fn find_socket(local: SocketAddr, remote: SocketAddr) -> SysResult<TcpLookup> {
    match with_lookup(|lookup| lookup.tcp(local, remote)) {
        // gVisor has no sock_diag(7), and no NAT rules of the host.
        Err(error) if error.is_unknown_protocol() => Ok(TcpLookup::Missing),
        found => found,
    }
}

/// Calls `query` with this thread's netlink socket. An error closes the socket, because an answer may still be queued there.
fn with_lookup<T>(query: impl FnOnce(&SocketLookup) -> SysResult<T>) -> SysResult<T> {
    LOOKUP.with_borrow_mut(|slot| {
        let lookup = match slot.take() {
            Some(lookup) => lookup,
            None => SocketLookup::open()?,
        };
        let answer = query(&lookup)?;
        *slot = Some(lookup);
        Ok(answer)
    })
}

thread_local! {
    /// A worker's netlink socket, in its own network namespace.
    static LOOKUP: RefCell<Option<SocketLookup>> = const { RefCell::new(None) };
}

static PROBE_FAILED_LOG: Throttle = Throttle::new();
