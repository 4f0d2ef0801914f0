//! An error that names the system call it came from.

use std::fmt::{self, Display, Formatter};
use std::io;

pub use rustix::io::Errno;

/// A system call failed.
///
/// Displayed as `setsockopt(IP_TRANSPARENT): Operation not permitted (os error 1)`, because without the call a dozen different
/// failures would have the same text.
#[derive(Debug)]
pub struct SyscallError {
    /// The call, with the option or path where one call has many uses.
    pub call: &'static str,
    /// The kernel's error.
    pub source: io::Error,
}

impl SyscallError {
    /// The kernel's error number, if it is a kernel error.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Whether the kernel refused for lack of a capability or by a policy (EPERM, EACCES).
    pub fn is_permission(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }

    /// Whether no interface has the address, or no port is free for it (EADDRNOTAVAIL).
    pub fn is_address_unavailable(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrNotAvailable
    }

    /// Whether descriptors or memory have run out (EMFILE, ENFILE, ENOBUFS, ENOMEM).
    pub fn is_exhaustion(&self) -> bool {
        is_exhaustion(&self.source)
    }

    /// Whether this process (EMFILE) or the system (ENFILE) has no descriptor left.
    pub fn is_out_of_descriptors(&self) -> bool {
        is_out_of_descriptors(&self.source)
    }

    /// Whether no port was left for a UDP socket, which connect(2) reports as EAGAIN (`net.ipv4.ip_local_port_range`).
    pub fn is_udp_port_exhaustion(&self) -> bool {
        self.errno() == Some(libc::EAGAIN)
    }

    /// Whether this kernel lacks the protocol (EPROTONOSUPPORT).
    pub fn is_unknown_protocol(&self) -> bool {
        self.errno() == Some(libc::EPROTONOSUPPORT)
    }

    /// Whether this kernel is too old for the option (ENOPROTOOPT).
    pub fn is_unknown_option(&self) -> bool {
        self.errno() == Some(libc::ENOPROTOOPT)
    }
}

impl Display for SyscallError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.source)
    }
}

/// Without a `source()`: the text includes it already, and printing the chain would repeat it.
impl std::error::Error for SyscallError {}

/// What a call of libc has returned, unless that is negative: then the call has failed, and errno(3) says why.
pub(crate) fn checked<T: Copy + Into<i64>>(returned: T) -> io::Result<T> {
    if returned.into() < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(returned)
}

/// Whether accept(2) can never succeed again: the socket does not listen any more, as after `ss --kill`.
pub fn is_broken_listener(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EBADF | libc::ENOTSOCK)
    )
}

/// Whether an error of accept(2) concerns only the connection it would have returned, so that the next call may
/// succeed (accept(2), "Error handling").
pub fn is_per_connection_error(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    errno.is_some_and(|errno| PER_CONNECTION_ERRORS.contains(&errno))
}

const PER_CONNECTION_ERRORS: [i32; 10] = [
    libc::ECONNABORTED,
    libc::EHOSTDOWN,
    libc::EHOSTUNREACH,
    libc::EINTR,
    libc::ENETDOWN,
    libc::ENETUNREACH,
    libc::ENONET,
    libc::ENOPROTOOPT,
    libc::EOPNOTSUPP,
    libc::EPROTO,
];

/// Whether descriptors or memory have run out (EMFILE, ENFILE, ENOBUFS, ENOMEM).
pub fn is_exhaustion(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

/// Whether this process (EMFILE) or the system (ENFILE) has no descriptor left.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Whether a datagram is longer than its protocol or its path allows (EMSGSIZE).
pub fn is_too_large(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMSGSIZE)
}

/// Whether a connected UDP socket was destroyed by another process (SOCK_DESTROY, `ss --kill`) and is disconnected: it
/// reports ECONNABORTED once, and EDESTADDRREQ for every send from then on.
pub fn is_destroyed(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ECONNABORTED | libc::EDESTADDRREQ)
    )
}

/// Whether a device failed to perform the operation (EIO).
pub fn is_device_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EIO)
}

/// The result of a system call.
pub type Result<T, E = SyscallError> = std::result::Result<T, E>;

/// Adds the name of the system call to an error.
pub trait NameCall<T> {
    /// Turns any error into [`SyscallError`] with this name.
    fn call(self, call: &'static str) -> Result<T>;
}

impl<T, E: Into<io::Error>> NameCall<T> for std::result::Result<T, E> {
    fn call(self, call: &'static str) -> Result<T> {
        self.map_err(|error| SyscallError {
            call,
            source: error.into(),
        })
    }
}
