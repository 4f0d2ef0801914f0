//! The C functions that programs call in place of their C library's.
//!
//! `C` and not `C-unwind` for the sake of threads that are cancelled: see the exports of libpeername.so.
#![expect(unsafe_code, reason = "a C interface")]
#![expect(unreachable_pub, reason = "exported by name, not by path")]

use core::ffi::{c_int, c_uint, c_void};

use peername_preload_common::address::RawAddress;
use peername_preload_common::imports::{errno, has_environment, syscall_ret};
use peername_preload_common::kernel::{self, Errno, MSG_DONTWAIT};
use peername_preload_common::socket::Socket;

use crate::claim::{claim, log_debug};
use crate::imports;
use crate::opening::{ConnectStart, MSG_FASTOPEN, start_connect};

/// The symbol that the launcher searches the file for: the version of the variables that the library reads.
#[unsafe(no_mangle)]
pub static peername_connect_1: u8 = 0;

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    /// Reads the environment before the program can change it.
    extern "C" fn at_load() {
        if has_environment() {
            let _ = claim();
        }
        imports::find_functions();
    }
    at_load
};

/// connect(2).
///
/// # Safety
///
/// As connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, address: *const c_void, len: u32) -> c_int {
    // SAFETY: the caller's.
    let connected = match unsafe { start_connect_at(fd, address, len) } {
        // SAFETY: the caller's.
        ConnectStart::PassOn => unsafe { imports::connect(fd, address, len) },
        // SAFETY: the caller's.
        ConnectStart::InProgress => unsafe { wait_connected(fd, address, len) },
        ConnectStart::Failed(error) => syscall_ret(Err(error)),
    };
    // libproxyproto makes every socket blocking, so it prints the line for non-blocking ones, too.
    if connected == 0 || errno() == Errno::EINPROGRESS {
        log_debug("connected\n");
    }
    connected
}

/// sendto(2). With MSG_FASTOPEN it connects, too.
///
/// # Safety
///
/// As sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    data: *const c_void,
    len: usize,
    flags: c_int,
    address: *const c_void,
    address_len: u32,
) -> isize {
    // SAFETY: the caller's.
    match unsafe { connect_first(fd, flags, || (address, address_len)) } {
        // SAFETY: the caller's.
        Some(flags) => unsafe { imports::sendto(fd, data, len, flags, address, address_len) },
        None => -1,
    }
}

/// sendmsg(2). With MSG_FASTOPEN it connects, too.
///
/// # Safety
///
/// As sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const c_void, flags: c_int) -> isize {
    // SAFETY: the caller's.
    match unsafe { connect_first(fd, flags, || destination(message)) } {
        // SAFETY: the caller's.
        Some(flags) => unsafe { imports::sendmsg(fd, message, flags) },
        None => -1,
    }
}

/// sendmmsg(2). With MSG_FASTOPEN it connects, too, to the destination of the first message.
///
/// # Safety
///
/// As sendmmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut c_void,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let first = if count == 0 {
        core::ptr::null()
    } else {
        messages.cast_const()
    };
    // SAFETY: the caller's: an array of `struct mmsghdr`, each of which begins with a message.
    match unsafe { connect_first(fd, flags, || destination(first)) } {
        // SAFETY: the caller's.
        Some(flags) => unsafe { imports::sendmmsg(fd, messages, count, flags) },
        None => -1,
    }
}

/// Opens the connection for a call with MSG_FASTOPEN, as if the server had never handed out a cookie: first the header, then
/// the connection, then the data. Returns the flags to send the data with; `None`, with errno set, if the data can't be sent
/// yet, or not at all.
///
/// # Safety
///
/// As connect(2), for the address that `destination` returns.
unsafe fn connect_first(
    fd: c_int,
    flags: c_int,
    destination: impl FnOnce() -> (*const c_void, u32),
) -> Option<c_int> {
    if flags & MSG_FASTOPEN == 0 {
        return Some(flags);
    }
    let (address, len) = destination();
    // SAFETY: the caller's.
    let connected = match unsafe { start_connect_at(fd, address, len) } {
        ConnectStart::PassOn => return Some(flags),
        ConnectStart::InProgress if flags & MSG_DONTWAIT != 0 => {
            syscall_ret(Err(Errno::EINPROGRESS))
        }
        // SAFETY: the caller's.
        ConnectStart::InProgress => unsafe { wait_connected(fd, address, len) },
        ConnectStart::Failed(error) => syscall_ret(Err(error)),
    };
    (connected == 0).then_some(flags & !MSG_FASTOPEN)
}

/// Starts to connect to an address in the program's memory.
///
/// # Safety
///
/// As connect(2).
unsafe fn start_connect_at(fd: c_int, address: *const c_void, len: u32) -> ConnectStart {
    let mut to = RawAddress::EMPTY;
    // Such an address is invalid, and the kernel returns its error for it.
    if address.is_null() || len as usize > RawAddress::SIZE {
        return ConnectStart::PassOn;
    }
    // SAFETY: the caller's address has `len` bytes, and `to` has room for them.
    unsafe { core::ptr::copy_nonoverlapping(address.cast(), to.bytes.as_mut_ptr(), len as usize) };
    to.len = len;
    start_connect(Socket(fd), &to)
}

/// Waits until a connection that is in progress is established, if the socket is blocking.
///
/// # Safety
///
/// As connect(2).
unsafe fn wait_connected(fd: c_int, address: *const c_void, len: u32) -> c_int {
    if kernel::is_nonblocking(fd) == Ok(true) {
        return syscall_ret(Err(Errno::EINPROGRESS));
    }
    // SAFETY: the caller's.
    let connected = unsafe { imports::connect(fd, address, len) };
    // The socket's timeout has passed (SO_SNDTIMEO, socket(7)). The program has made one call, for which the kernel would
    // return EINPROGRESS. EALREADY is the error of this second one.
    if connected == -1 && errno() == Errno::EALREADY {
        return syscall_ret(Err(Errno::EINPROGRESS));
    }
    connected
}

/// The destination of a message.
///
/// # Safety
///
/// Null, or a `struct msghdr`.
unsafe fn destination(message: *const c_void) -> (*const c_void, u32) {
    // SAFETY: the caller's.
    let head = unsafe { message.cast::<MessageHead>().as_ref() };
    head.map_or((core::ptr::null(), 0), |head| (head.name, head.name_len))
}

/// The first fields of a `struct msghdr`.
#[repr(C)]
struct MessageHead {
    name: *const c_void,
    name_len: u32,
}
