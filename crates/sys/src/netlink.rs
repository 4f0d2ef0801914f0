//! Routing rules, local routes and interface addresses over rtnetlink(7), so that no `ip` binary is
//! needed at run time.
//!
//! Only what the reply path asks for is here: rules that look at the source of what this host sends, or at a mark,
//! tables that call every destination local, and what is this host's own. Neighbours, ordinary
//! routes and links other than loopback are never touched. Reading needs no capability, changing CAP_NET_ADMIN.

mod address;
mod egress;
mod link;
pub(crate) mod raw;
mod route;
mod rule;
pub mod sock_diag;
mod xfrm;

use std::io;

use futures_util::{Stream, StreamExt};
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::{Error, Handle};
use tokio::task::AbortHandle;

pub use address::{AddressChange, AddressMonitor, InterfaceAddress};
pub use egress::Egress;
pub use route::{LocalNetwork, LocalRoute};
pub use rule::{Rule, Selector};
pub use xfrm::has_ipsec_policies;

use crate::{NameCall, Result, SyscallError};

/// An rtnetlink socket. It belongs to the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Netlink {
    handle: Handle,
    /// The task that moves messages between the socket and the handle. It ends with this value.
    pump: AbortHandle,
}

impl Netlink {
    /// Opens a socket. Must be called inside a tokio runtime, which carries its messages.
    ///
    /// Where the kernel can (since Linux 4.20), dumps are filtered by the kernel: on a router the
    /// main table has a million entries, and none of them is of interest here.
    pub fn open() -> Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection_with_strict_check()
            .or_else(|_| rtnetlink::new_connection())
            .call("socket(NETLINK_ROUTE)")?;
        let pump = tokio::spawn(connection).abort_handle();
        Ok(Self { handle, pump })
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

/// The two kinds of address the kernel keeps apart: each has rules and tables of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The two protocols whose packets have ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// As `ip rule` writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Whether the kernel refused because it has no such family here: IPv6 left out of the kernel or
/// switched off at boot (EAFNOSUPPORT, EOPNOTSUPP), or by `net.ipv6.conf.*.disable_ipv6` (EACCES; a
/// missing capability is EPERM).
pub fn is_family_disabled(error: &SyscallError) -> bool {
    matches!(
        error.errno(),
        Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EACCES)
    )
}

/// Whether the same rule or route is there already (EEXIST).
pub fn already_exists(error: &SyscallError) -> bool {
    error.errno() == Some(libc::EEXIST)
}

/// Whether there was nothing to delete: ENOENT for a rule, ESRCH for a route, and for both any
/// answer that says that the family itself is not there.
pub fn is_not_found(error: &SyscallError) -> bool {
    matches!(error.errno(), Some(libc::ENOENT | libc::ESRCH)) || is_family_disabled(error)
}

/// The loopback interface is the first of every network namespace (LOOPBACK_IFINDEX in the kernel).
pub const LOOPBACK: u32 = 1;

fn named<T>(result: std::result::Result<T, Error>, call: &'static str) -> Result<T> {
    result.map_err(into_io).call(call)
}

fn into_io(error: Error) -> io::Error {
    match error {
        Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other.to_string()),
    }
}

/// Reads a dump to its end.
async fn all<T>(
    dump: impl Stream<Item = std::result::Result<T, Error>>,
    call: &'static str,
) -> Result<Vec<T>> {
    let mut dump = std::pin::pin!(dump);
    let mut found = Vec::new();
    while let Some(item) = dump.next().await {
        found.push(named(item, call)?);
    }
    Ok(found)
}

fn protocol(number: u8) -> RouteProtocol {
    RouteProtocol::from(number)
}
