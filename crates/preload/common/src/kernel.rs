//! System calls, made directly: they don't touch errno, and need no C library.
#![expect(unsafe_code, reason = "system calls take addresses")]

use core::ffi::{CStr, c_int};

use syscalls::{syscall, syscall6};

use crate::address::RawAddress;
use crate::pass;

mod call;
mod fd_passing;
mod mapping;
mod text;

use call::{NO_DESCRIPTOR, O_RDWR, descriptor, open_with};

pub use call::{
    MSG_CMSG_CLOEXEC, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, Result, SOCK_CLOEXEC, SOCK_DGRAM,
    SOCK_NONBLOCK, SOCK_RAW, SOL_SOCKET, close,
};
pub use fd_passing::{MAX_PASSED, receive_descriptor, send_descriptors};
pub use mapping::{MappingCell, map_file, map_fresh};
pub use syscalls::{Errno, Sysno};
pub use text::StaticText;

/// Makes a system call that the program has made, unchanged.
///
/// # Safety
///
/// The arguments are the program's own for this very call.
pub unsafe fn pass_on(call: Sysno, [a, b, c, d, e, f]: [usize; 6]) -> Result<usize> {
    // SAFETY: the program could have made the call itself.
    unsafe { syscall6(call, a, b, c, d, e, f) }
}

/// Whether this process can open the file for reading and, with `write`, for writing.
pub fn can_open(path: &CStr, write: bool) -> bool {
    open_with(path, if write { O_RDWR } else { 0 })
        .map(close)
        .is_ok()
}

/// Opens a file for reading.
pub fn open(path: &CStr) -> Result<c_int> {
    open_with(path, 0)
}

/// read(2).
pub fn read(fd: c_int, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most as many bytes as the buffer has.
    unsafe { syscall!(Sysno::read, fd, buffer.as_mut_ptr(), buffer.len()) }
}

/// The inode number of an open file (fstat(2)).
pub fn inode(fd: c_int) -> Result<u64> {
    // `struct stat` has 18 words (x86_64) or 16 (aarch64), and the second is `st_ino`.
    let mut stat = [0_u64; 18];
    // SAFETY: the kernel writes one `struct stat`.
    unsafe { syscall!(Sysno::fstat, fd, &raw mut stat) }?;
    let [_device, inode, ..] = stat;
    Ok(inode)
}

/// Returns a socket's local address or its peer's, as the kernel has it.
pub fn socket_name(fd: c_int, end: Endpoint) -> Result<RawAddress> {
    socket_name_with(fd, end, pass::current())
}

/// Like [`socket_name`], with explicit fifth and sixth arguments. The kernel ignores them; a seccomp filter may not.
pub fn socket_name_with(fd: c_int, end: Endpoint, [fifth, sixth]: [u64; 2]) -> Result<RawAddress> {
    let mut address = RawAddress::EMPTY;
    let mut len = RawAddress::SIZE as u32;
    let call = match end {
        Endpoint::Local => Sysno::getsockname,
        Endpoint::Peer => Sysno::getpeername,
    };
    let (to, len_at) = (&raw mut address.bytes, &raw mut len);
    // SAFETY: the kernel writes at most `len` bytes to the first pointer and one u32 to the second.
    unsafe { syscall!(call, fd, to, len_at, 0, fifth, sixth) }?;
    address.len = len;
    Ok(address)
}

/// Makes a getpeername(2) without a socket, with these fifth and sixth arguments. The supervisor answers the call with a new
/// descriptor.
///
/// # Errors
///
/// EBADF without the seccomp filter, ENOSYS without a supervisor, EINTR, and the errors that the supervisor returns.
pub fn request_descriptor([fifth, sixth]: [u64; 2]) -> Result<c_int> {
    // SAFETY: without a socket and an address the kernel reads and writes no memory.
    unsafe { syscall!(Sysno::getpeername, NO_DESCRIPTOR, 0, 0, 0, fifth, sixth) }.map(descriptor)
}

/// accept4(2) as a bare system call. Returns the descriptor, and its peer's address.
pub fn accept4(listener: c_int, flags: c_int) -> Result<(c_int, RawAddress)> {
    let mut address = RawAddress::EMPTY;
    let mut len = RawAddress::SIZE as u32;
    let (to, len_at) = (&raw mut address.bytes, &raw mut len);
    let [fifth, sixth] = pass::current();
    // SAFETY: the kernel writes at most `len` bytes to the first pointer and one u32 to the second.
    let fd = unsafe { syscall!(Sysno::accept4, listener, to, len_at, flags, fifth, sixth) }?;
    address.len = len;
    Ok((descriptor(fd), address))
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// getsockname(2).
    Local,
    /// getpeername(2).
    Peer,
}

/// A type of socket option values.
///
/// # Safety
///
/// Every bit pattern must be a value of the type, and the type must have no padding.
pub unsafe trait Plain: Copy + Default {}

// SAFETY: an integer.
unsafe impl Plain for i32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: integers.
unsafe impl Plain for [i32; 2] {}
// SAFETY: integers.
unsafe impl Plain for [i64; 2] {}

/// getsockopt(2).
pub fn get_option<T: Plain>(fd: c_int, level: c_int, option: c_int) -> Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as u32;
    let (to, len_at) = (&raw mut value, &raw mut len);
    // SAFETY: the kernel writes at most `len` bytes, which is the size of the value, and any bits will
    // do.
    unsafe { syscall!(Sysno::getsockopt, fd, level, option, to, len_at) }?;
    Ok(value)
}

/// setsockopt(2).
pub fn set_option<T: Plain>(fd: c_int, level: c_int, option: c_int, value: T) -> Result<()> {
    let (from, len) = (&raw const value, size_of::<T>());
    // SAFETY: the kernel reads as many bytes as the value has.
    unsafe { syscall!(Sysno::setsockopt, fd, level, option, from, len) }.map(drop)
}

/// recvfrom(2) without an address.
pub fn receive(fd: c_int, buffer: &mut [u8], flags: c_int) -> Result<usize> {
    let (to, len) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: the kernel writes at most as many bytes as the buffer has; the last two arguments say that no address is wanted.
    unsafe { syscall!(Sysno::recvfrom, fd, to, len, flags, 0, 0) }
}

/// sendto(2) without an address.
pub fn send(fd: c_int, bytes: &[u8], flags: c_int) -> Result<usize> {
    let (from, len) = (bytes.as_ptr(), bytes.len());
    // SAFETY: the kernel reads as many bytes as there are.
    unsafe { syscall!(Sysno::sendto, fd, from, len, flags, 0, 0) }
}

/// sendto(2).
pub fn send_to(fd: c_int, bytes: &[u8], flags: c_int, to: &RawAddress) -> Result<usize> {
    let (from, len) = (bytes.as_ptr(), bytes.len());
    let (address, address_len) = (to.bytes.as_ptr(), to.len.min(RawAddress::SIZE as u32));
    // SAFETY: the kernel reads as many bytes as there are, and no more than the address has.
    unsafe { syscall!(Sysno::sendto, fd, from, len, flags, address, address_len) }
}

/// socket(2).
pub fn socket(family: c_int, kind: c_int, protocol: c_int) -> Result<c_int> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::socket, family, kind, protocol) }.map(descriptor)
}

/// connect(2).
pub fn connect(fd: c_int, address: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads as many bytes as there are.
    unsafe { syscall!(Sysno::connect, fd, address.as_ptr(), address.len()) }.map(drop)
}

/// Waits at most `milliseconds` until the descriptor is readable. Returns whether it is.
pub fn wait_readable(fd: c_int, milliseconds: i64) -> bool {
    poll_readable(fd, milliseconds.saturating_mul(1_000_000)) == Ok(true)
}

/// Waits at most `nanoseconds` until the descriptor is readable (ppoll(2)). Returns whether it is.
///
/// # Errors
///
/// EINTR after a signal.
pub fn poll_readable(fd: c_int, nanoseconds: i64) -> Result<bool> {
    let mut poll = Poll {
        fd,
        events: POLLIN,
        returned: 0,
    };
    let timeout = [nanoseconds / SECOND, nanoseconds % SECOND];
    let (poll_at, timeout_at) = (&raw mut poll, &raw const timeout);
    // SAFETY: one pollfd, which the kernel writes, one timespec, which it may, and no signal mask.
    unsafe { syscall!(Sysno::ppoll, poll_at, 1, timeout_at, 0, 0) }.map(|n| n > 0)
}

/// The time of CLOCK_MONOTONIC (clock_gettime(2)) in nanoseconds.
pub fn monotonic_time() -> i64 {
    let mut time = [0_i64; 2];
    // SAFETY: the kernel writes one timespec. The clock exists, so the call can't fail.
    let _ = unsafe { syscall!(Sysno::clock_gettime, CLOCK_MONOTONIC, &raw mut time) };
    let [seconds, nanoseconds] = time;
    seconds.saturating_mul(SECOND).saturating_add(nanoseconds)
}

/// Whether the open socket is non-blocking (O_NONBLOCK).
pub fn is_nonblocking(fd: c_int) -> Result<bool> {
    status_flags(fd).map(|flags| flags & SOCK_NONBLOCK as usize != 0)
}

/// Makes the open socket blocking or non-blocking, as the caller of accept4(2) requested.
pub fn set_nonblocking(fd: c_int, nonblocking: bool) -> Result<()> {
    let flags = status_flags(fd)?;
    let flags = match nonblocking {
        true => flags | SOCK_NONBLOCK as usize,
        false => flags & !(SOCK_NONBLOCK as usize),
    };
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::fcntl, fd, F_SETFL, flags) }.map(drop)
}

fn status_flags(fd: c_int) -> Result<usize> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::fcntl, fd, F_GETFL, 0) }
}

/// Writes text to the program's standard error.
pub fn write_stderr(text: &str) {
    // SAFETY: the kernel reads as many bytes as there are.
    let _ = unsafe { syscall!(Sysno::write, 2, text.as_ptr(), text.len()) };
}

/// Ends the process by exit_group(2).
pub fn exit(code: c_int) -> ! {
    loop {
        // SAFETY: no memory is involved.
        let _ = unsafe { syscall!(Sysno::exit_group, code) };
    }
}

/// Ends the process as abort(3) does.
pub fn abort() -> ! {
    loop {
        // SAFETY: no memory is involved.
        let pid = unsafe { syscall!(Sysno::getpid) }.unwrap_or(0);
        // SAFETY: as above.
        let _ = unsafe { syscall!(Sysno::kill, pid, SIGABRT) };
        // SAFETY: as above.
        let _ = unsafe { syscall!(Sysno::exit_group, ABORTED) };
    }
}

/// `struct pollfd`.
#[repr(C)]
struct Poll {
    fd: c_int,
    events: i16,
    returned: i16,
}

const POLLIN: i16 = 1;
const CLOCK_MONOTONIC: c_int = 1;
/// A second in nanoseconds.
pub(crate) const SECOND: i64 = 1_000_000_000;
const F_GETFL: usize = 3;
const F_SETFL: usize = 4;
const SIGABRT: c_int = 6;
/// The exit code that a shell reports for a process that SIGABRT has ended.
const ABORTED: c_int = 128 + SIGABRT;
