//! The error of a mediated call, or of the mediator itself.

use std::io;

use peername_sys::{Errno, Result, SyscallError};

pub(super) type CallResult<T> = Result<T, CallError>;

/// Why a call was not made.
pub(super) enum CallError {
    /// The call fails with this error.
    Call(io::Error),
    /// This process can't go on.
    Mediator(SyscallError),
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> Self {
        Self::Call(error)
    }
}

impl From<Errno> for CallError {
    fn from(error: Errno) -> Self {
        Self::Call(error.into())
    }
}

impl From<SyscallError> for CallError {
    fn from(error: SyscallError) -> Self {
        Self::Call(error.source)
    }
}

/// Whether the error is this one of the kernel's.
pub(super) fn has_errno(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}
