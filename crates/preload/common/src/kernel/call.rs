//! The result of a system call, and constants that several calls share.

use core::ffi::{CStr, c_int};

use syscalls::{Errno, Sysno, syscall};

/// The result of a system call.
pub type Result<T> = core::result::Result<T, Errno>;

pub(super) fn descriptor(result: usize) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

/// open(2), with these flags and O_CLOEXEC.
pub(super) fn open_with(path: &CStr, flags: c_int) -> Result<c_int> {
    let flags = flags | O_CLOEXEC;
    // SAFETY: the path ends with NUL.
    unsafe { syscall!(Sysno::openat, AT_FDCWD, path.as_ptr(), flags) }.map(descriptor)
}

/// close(2).
pub fn close(fd: c_int) {
    // SAFETY: no memory is involved. Nothing can be done about an error.
    let _ = unsafe { syscall!(Sysno::close, fd) };
}

// These constants are the same on x86_64 and aarch64.
/// The level of a socket's own options.
pub const SOL_SOCKET: c_int = 1;
/// Peek: leave the data in the queue.
pub const MSG_PEEK: c_int = 0x2;
/// EAGAIN instead of blocking.
pub const MSG_DONTWAIT: c_int = 0x40;
/// No SIGPIPE.
pub const MSG_NOSIGNAL: c_int = 0x4000;
/// Descriptors received are closed by exec(3).
pub const MSG_CMSG_CLOEXEC: c_int = 0x4000_0000;
/// The type of datagram sockets.
pub const SOCK_DGRAM: c_int = 2;
/// The type of netlink(7) sockets.
pub const SOCK_RAW: c_int = 3;
/// O_NONBLOCK.
pub const SOCK_NONBLOCK: c_int = 0o4000;
/// O_CLOEXEC.
pub const SOCK_CLOEXEC: c_int = 0o2_000_000;
pub(super) const NO_DESCRIPTOR: c_int = -1;
const AT_FDCWD: c_int = -100;
pub(super) const O_RDWR: c_int = 2;
const O_CLOEXEC: c_int = SOCK_CLOEXEC;
