//! The error of a call, or of the mediator itself.

use std::io;

use peername_sys::{Errno, SyscallError};

/// Why a call was not made.
pub(super) enum Failed {
    /// The call fails with this error.
    Call(io::Error),
    /// This process can't go on.
    Mediator(SyscallError),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Call(error)
    }
}

impl From<Errno> for Failed {
    fn from(error: Errno) -> Self {
        Self::Call(error.into())
    }
}

impl From<SyscallError> for Failed {
    fn from(error: SyscallError) -> Self {
        Self::Call(error.source)
    }
}
