//! System calls, made directly: they don't touch errno, and need no C library.
#![expect(unsafe_code, reason = "system calls are assembly")]

use core::ffi::{CStr, c_int};

use crate::address::RawAddress;
use crate::pass;

mod call;
mod errno;
mod fd_passing;
mod mapping;
mod text;

use call::{AT_FDCWD, O_CLOEXEC, O_RDWR, arg, call, descriptor, system_call};

pub use call::{
    Call, MSG_CMSG_CLOEXEC, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, SOCK_CLOEXEC, SOCK_DGRAM,
    SOCK_NONBLOCK, SOCK_RAW, SOL_SOCKET, close,
};
pub use errno::{Errno, Result};
pub use fd_passing::{MAX_PASSED, receive_descriptor, send_descriptors};
pub use mapping::{MappingCell, map_file, map_fresh};
pub use text::StaticText;

/// Passes a call on to the kernel as the program made it.
///
/// # Safety
///
/// The arguments are the program's own for this very call.
pub unsafe fn pass_on(call: Call, args: [usize; 6]) -> Result<usize> {
    // SAFETY: the program could have made the call itself.
    unsafe { system_call(call as usize, args) }
}

/// Whether this process can open the file for reading and, with `write`, for writing.
pub fn can_open(path: &CStr, write: bool) -> bool {
    let flags = if write { O_RDWR } else { 0 } | O_CLOEXEC;
    let args = [arg(AT_FDCWD), path.as_ptr() as usize, arg(flags), 0, 0];
    // SAFETY: the path ends with NUL.
    let fd = unsafe { call(Call::OpenAt, args) };
    fd.is_ok_and(|fd| {
        close(descriptor(fd));
        true
    })
}

/// Opens a file for reading.
pub fn open(path: &CStr) -> Result<c_int> {
    let args = [arg(AT_FDCWD), path.as_ptr() as usize, arg(O_CLOEXEC), 0, 0];
    // SAFETY: the path ends with NUL.
    unsafe { call(Call::OpenAt, args) }.map(descriptor)
}

/// read(2).
pub fn read(fd: c_int, buffer: &mut [u8]) -> Result<usize> {
    let args = [arg(fd), buffer.as_mut_ptr() as usize, buffer.len(), 0, 0];
    // SAFETY: the kernel writes at most as many bytes as the buffer has.
    unsafe { call(Call::Read, args) }
}

/// The inode number of an open file (fstat(2)).
pub fn inode(fd: c_int) -> Result<u64> {
    // `struct stat` has at most so many words, of which the second is `st_ino` on both architectures.
    let mut stat = [0_u64; 18];
    let args = [arg(fd), &raw mut stat as usize, 0, 0, 0];
    // SAFETY: the kernel writes one `struct stat`.
    unsafe { call(Call::FStat, args) }?;
    let [_device, inode, ..] = stat;
    Ok(inode)
}

/// Returns a socket's own address or its peer's, as the kernel has it.
pub fn name_of(fd: c_int, end: End) -> Result<RawAddress> {
    name_with(fd, end, pass::current())
}

/// The same with explicit fifth and sixth arguments. The kernel ignores them; a seccomp filter may not.
///
/// # Errors
///
/// Those of getsockname(2) and getpeername(2), and what the filter returns.
pub fn name_with(fd: c_int, end: End, [fifth, sixth]: [u64; 2]) -> Result<RawAddress> {
    let mut address = RawAddress::EMPTY;
    let mut len = RawAddress::SIZE as u32;
    let which = match end {
        End::Own => Call::GetSockName,
        End::Peer => Call::GetPeerName,
    };
    let (to, len_at) = (&raw mut address.bytes, &raw mut len);
    let (fifth, sixth) = (fifth as usize, sixth as usize);
    let args = [arg(fd), to as usize, len_at as usize, 0, fifth, sixth];
    // SAFETY: the kernel writes at most `len` bytes to the first pointer and one u32 to the second.
    unsafe { system_call(which as usize, args) }?;
    address.len = len;
    Ok(address)
}

/// Makes a getpeername(2) without a socket, with these fifth and sixth arguments, to which the supervisor answers with a new
/// descriptor.
///
/// # Errors
///
/// EBADF without the seccomp filter, ENOSYS without a supervisor, EINTR, and those that the supervisor answers with.
pub fn request_descriptor([fifth, sixth]: [u64; 2]) -> Result<c_int> {
    let args = [arg(-1), 0, 0, 0, fifth as usize, sixth as usize];
    // SAFETY: without a socket and an address the kernel reads and writes no memory.
    unsafe { system_call(Call::GetPeerName as usize, args) }.map(descriptor)
}

/// accept4(2) as a bare system call: the descriptor, and its peer's address.
///
/// # Errors
///
/// Those of accept4(2), EAGAIN among them.
pub fn accept4(listener: c_int, flags: c_int) -> Result<(c_int, RawAddress)> {
    let mut address = RawAddress::EMPTY;
    let mut len = RawAddress::SIZE as u32;
    let (to, len_at) = (&raw mut address.bytes, &raw mut len);
    let [fifth, sixth] = pass::current().map(|word| word as usize);
    let (to, len_at) = (to as usize, len_at as usize);
    let args = [arg(listener), to, len_at, arg(flags), fifth, sixth];
    // SAFETY: the kernel writes at most `len` bytes to the first pointer and one u32 to the second.
    let fd = unsafe { system_call(Call::Accept4 as usize, args) }?;
    address.len = len;
    Ok((descriptor(fd), address))
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// getsockname(2).
    Own,
    /// getpeername(2).
    Peer,
}

/// A type that socket options are read and written as.
///
/// # Safety
///
/// Any bits must be a value of the type, and it must have no padding.
pub unsafe trait Plain: Copy + Default {}

// SAFETY: an integer.
unsafe impl Plain for i32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: integers.
unsafe impl Plain for [i32; 2] {}

/// getsockopt(2).
pub fn get_option<T: Plain>(fd: c_int, level: c_int, option: c_int) -> Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as u32;
    let (to, len_at) = (&raw mut value as usize, &raw mut len as usize);
    let args = [arg(fd), arg(level), arg(option), to, len_at];
    // SAFETY: the kernel writes at most `len` bytes, which is the size of the value, and any bits will
    // do.
    unsafe { call(Call::GetSockOpt, args) }?;
    Ok(value)
}

/// setsockopt(2).
pub fn set_option<T: Plain>(fd: c_int, level: c_int, option: c_int, value: T) -> Result<()> {
    let args = [
        arg(fd),
        arg(level),
        arg(option),
        &raw const value as usize,
        size_of::<T>(),
    ];
    // SAFETY: the kernel reads as many bytes as the value has.
    unsafe { call(Call::SetSockOpt, args) }.map(drop)
}

/// recvfrom(2) without an address.
pub fn receive(fd: c_int, buffer: &mut [u8], flags: c_int) -> Result<usize> {
    let args = [
        arg(fd),
        buffer.as_mut_ptr() as usize,
        buffer.len(),
        arg(flags),
        0,
    ];
    // SAFETY: the kernel writes at most as many bytes as the buffer has; the sixth argument, 0 as the
    // fifth, says that no address is wanted.
    unsafe { call(Call::RecvFrom, args) }
}

/// sendto(2) without an address.
pub fn send(fd: c_int, bytes: &[u8], flags: c_int) -> Result<usize> {
    let args = [arg(fd), bytes.as_ptr() as usize, bytes.len(), arg(flags), 0];
    // SAFETY: the kernel reads as many bytes as there are.
    unsafe { call(Call::SendTo, args) }
}

/// sendto(2).
pub fn send_to(fd: c_int, bytes: &[u8], flags: c_int, to: &RawAddress) -> Result<usize> {
    let (start, len) = (bytes.as_ptr() as usize, bytes.len());
    let (address, address_len) = (
        to.bytes.as_ptr() as usize,
        to.len.min(RawAddress::SIZE as u32),
    );
    let args = [
        arg(fd),
        start,
        len,
        arg(flags),
        address,
        address_len as usize,
    ];
    // SAFETY: the kernel reads as many bytes as there are, and no more than the address has.
    unsafe { system_call(Call::SendTo as usize, args) }
}

/// socket(2).
pub fn socket(family: c_int, kind: c_int, protocol: c_int) -> Result<c_int> {
    let args = [arg(family), arg(kind), arg(protocol), 0, 0];
    // SAFETY: no memory is involved.
    unsafe { call(Call::Socket, args) }.map(descriptor)
}

/// connect(2).
pub fn connect(fd: c_int, address: &[u8]) -> Result<()> {
    let args = [arg(fd), address.as_ptr() as usize, address.len(), 0, 0];
    // SAFETY: the kernel reads as many bytes as there are.
    unsafe { call(Call::Connect, args) }.map(drop)
}

/// Waits until the descriptor is readable; false if it is not within so many milliseconds (less than one second).
pub fn wait_readable(fd: c_int, milliseconds: i64) -> bool {
    let mut poll = Poll {
        fd,
        events: POLLIN,
        returned: 0,
    };
    let nanoseconds = milliseconds.saturating_mul(1_000_000);
    let timeout = [0_i64, nanoseconds.min(999_999_999)];
    let args = [&raw mut poll as usize, 1, &raw const timeout as usize, 0, 0];
    // SAFETY: one pollfd, which the kernel writes, one timespec, which it may, and no signal mask.
    unsafe { call(Call::PPoll, args) }.is_ok_and(|n| n > 0)
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
    unsafe { call(Call::Fcntl, [arg(fd), F_SETFL, flags, 0, 0]) }.map(drop)
}

fn status_flags(fd: c_int) -> Result<usize> {
    // SAFETY: no memory is involved.
    unsafe { call(Call::Fcntl, [arg(fd), F_GETFL, 0, 0, 0]) }
}

/// Writes text to the program's standard error.
pub fn complain(text: &str) {
    // SAFETY: the kernel reads as many bytes as there are.
    let _ = unsafe { call(Call::Write, [2, text.as_ptr() as usize, text.len(), 0, 0]) };
}

/// Ends the process by exit_group(2).
pub fn exit(code: c_int) -> ! {
    loop {
        // SAFETY: no memory is involved.
        let _ = unsafe { call(Call::ExitGroup, [arg(code), 0, 0, 0, 0]) };
    }
}

/// Ends the process as abort(3) does.
pub fn abort() -> ! {
    loop {
        // SAFETY: no memory is involved.
        let pid = unsafe { call(Call::GetPid, [0; 5]) }.unwrap_or(0);
        // SAFETY: as above.
        let _ = unsafe { call(Call::Kill, [pid, 6, 0, 0, 0]) };
        // SAFETY: as above.
        let _ = unsafe { call(Call::ExitGroup, [134, 0, 0, 0, 0]) };
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
const F_GETFL: usize = 3;
const F_SETFL: usize = 4;
