//! The rtnetlink socket, and what the modules of rules, routes and addresses share.

use std::io;

use futures_util::{Stream, StreamExt};
use rtnetlink::{Error, Handle};
use tokio::task::AbortHandle;

use crate::{NameCall, Result, SyscallError};

/// An rtnetlink socket. It belongs to the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Netlink {
    pub(super) handle: Handle,
    /// The task that moves messages between the socket and the handle. It ends with this value.
    connection_task: AbortHandle,
}

impl Netlink {
    /// Opens a socket. Must be called inside a tokio runtime, which transfers its messages.
    ///
    /// Since Linux 4.20, the kernel filters dumps (strict checking): on a router the
    /// main table has a million entries, and none of them is needed here.
    ///
    /// # Errors
    ///
    /// EMFILE, ENFILE or ENOMEM; EPERM or EAFNOSUPPORT where a sandbox forbids netlink.
    pub fn open() -> Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection_with_strict_check()
            .or_else(|_| rtnetlink::new_connection())
            .call("socket(NETLINK_ROUTE)")?;
        let connection_task = tokio::spawn(connection).abort_handle();
        Ok(Self {
            handle,
            connection_task,
        })
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.connection_task.abort();
    }
}

/// An address family. Each family has its own rules and tables; only their numbers are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Whether the address family is disabled: IPv6 not built into the kernel or
/// disabled at boot (EAFNOSUPPORT, EOPNOTSUPP), or by `net.ipv6.conf.*.disable_ipv6` (EACCES; a
/// missing capability is EPERM).
pub fn is_family_disabled(error: &SyscallError) -> bool {
    matches!(
        error.errno(),
        Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EACCES)
    )
}

/// Whether the same rule or route exists already (EEXIST).
pub fn already_exists(error: &SyscallError) -> bool {
    error.errno() == Some(libc::EEXIST)
}

/// Whether the rule or route to delete does not exist: ENOENT for a rule, ESRCH for a route; or the address family is disabled.
pub fn is_not_found(error: &SyscallError) -> bool {
    matches!(error.errno(), Some(libc::ENOENT | libc::ESRCH)) || is_family_disabled(error)
}

/// The loopback interface is the first of every network namespace (LOOPBACK_IFINDEX in the kernel).
pub const LOOPBACK: u32 = 1;

/// Turns an error of rtnetlink into one that names the request.
pub(super) fn with_call<T>(result: Result<T, Error>, call: &'static str) -> Result<T> {
    result.map_err(into_io).call(call)
}

fn into_io(error: Error) -> io::Error {
    match error {
        Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other.to_string()),
    }
}

/// Reads a dump to its end.
pub(super) async fn collect_dump<T>(
    dump: impl Stream<Item = Result<T, Error>>,
    call: &'static str,
) -> Result<Vec<T>> {
    let mut dump = std::pin::pin!(dump);
    let mut found = Vec::new();
    while let Some(item) = dump.next().await {
        found.push(with_call(item, call)?);
    }
    Ok(found)
}
