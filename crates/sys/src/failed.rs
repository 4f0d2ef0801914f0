//! An error that names the system call it came from.

use std::io;

/// A system call failed.
///
/// Displayed as `setsockopt(IP_TRANSPARENT): Operation not permitted (os error 1)`: without the call
/// the same text stands for a dozen different faults.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {source}")]
pub struct Failed {
    /// The call, with the option or address where one call has many uses.
    pub call: &'static str,
    /// What the kernel answered.
    pub source: io::Error,
}

impl Failed {
    /// The kernel's error number, where it was one.
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

    /// Whether this kernel is too old for the option (ENOPROTOOPT).
    pub fn is_unknown_option(&self) -> bool {
        self.errno() == Some(libc::ENOPROTOOPT)
    }

    /// Whether this process or the system has run out of descriptors or memory (EMFILE, ENFILE,
    /// ENOBUFS, ENOMEM): waiting helps, ending does not.
    pub fn is_exhaustion(&self) -> bool {
        is_exhaustion(&self.source)
    }
}

/// As [`Failed::is_exhaustion`], for an error that has no call yet.
pub fn is_exhaustion(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

/// The result of a system call.
pub type Result<T> = std::result::Result<T, Failed>;

/// Adds the name of the call to an error.
pub trait NameCall<T> {
    /// Turns any error into [`Failed`] with this name.
    fn call(self, call: &'static str) -> Result<T>;
}

impl<T, E: Into<io::Error>> NameCall<T> for std::result::Result<T, E> {
    fn call(self, call: &'static str) -> Result<T> {
        self.map_err(|error| Failed {
            call,
            source: error.into(),
        })
    }
}
