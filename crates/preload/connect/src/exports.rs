//! The C functions that programs call in place of their C library's.
//!
//! `C` and not `C-unwind` for the sake of threads that are cancelled: see the exports of libpeername.so.
#![expect(unsafe_code, reason = "a C interface")]
#![expect(unreachable_pub, reason = "exported by name, not by path")]

use core::ffi::{c_int, c_uint, c_void};

use peername_preload_common::address::RawAddress;
use peername_preload_common::imports::{answer, errno, has_environment};
use peername_preload_common::kernel::{self, Errno, MSG_DONTWAIT};
use peername_preload_common::socket::Socket;

use crate::claim::{claim, debug};
use crate::imports;
use crate::opening::{Begun, MSG_FASTOPEN, begin};

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
    let connected = match unsafe { begin_at(fd, address, len) } {
        // SAFETY: the caller's.
        Begun::NotOurs => unsafe { imports::connect(fd, address, len) },
        // SAFETY: the caller's.
        Begun::UnderWay => unsafe { wait(fd, address, len, false) },
        Begun::Failed(error) => answer(Err(error)),
    };
    // libproxyproto makes every socket blocking, so it prints the line for non-blocking ones, too.
    if connected == 0 || errno() == Errno::EINPROGRESS {
        debug("connected\n");
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
    match unsafe { connect_first(fd, flags, || name_of(message)) } {
        // SAFETY: the caller's.
        Some(flags) => unsafe { imports::sendmsg(fd, message, flags) },
        None => -1,
    }
}

/// sendmmsg(2). With MSG_FASTOPEN it connects, too, to where the first message goes.
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
    match unsafe { connect_first(fd, flags, || name_of(first)) } {
        // SAFETY: the caller's.
        Some(flags) => unsafe { imports::sendmmsg(fd, messages, count, flags) },
        None => -1,
    }
}

/// Opens the connection for a call with MSG_FASTOPEN, as if the server had never handed out a cookie: header, then
/// connection, then data. Returns the flags to send the data with; `None`, with errno set, where it can't be sent yet,
/// or not at all.
///
/// # Safety
///
/// As connect(2), for the address that `to` returns.
unsafe fn connect_first(
    fd: c_int,
    flags: c_int,
    to: impl FnOnce() -> (*const c_void, u32),
) -> Option<c_int> {
    if flags & MSG_FASTOPEN == 0 {
        return Some(flags);
    }
    let (address, len) = to();
    // SAFETY: the caller's.
    let connected = match unsafe { begin_at(fd, address, len) } {
        Begun::NotOurs => return Some(flags),
        // SAFETY: the caller's.
        Begun::UnderWay => unsafe { wait(fd, address, len, flags & MSG_DONTWAIT != 0) },
        Begun::Failed(error) => answer(Err(error)),
    };
    (connected == 0).then_some(flags & !MSG_FASTOPEN)
}

/// # Safety
///
/// As connect(2).
unsafe fn begin_at(fd: c_int, address: *const c_void, len: u32) -> Begun {
    let mut to = RawAddress::EMPTY;
    // An invalid address: the kernel reports what is wrong with it.
    if address.is_null() || len as usize > RawAddress::SIZE {
        return Begun::NotOurs;
    }
    // SAFETY: the caller's address has `len` bytes, and `to` has room for them.
    unsafe { core::ptr::copy_nonoverlapping(address.cast(), to.bytes.as_mut_ptr(), len as usize) };
    to.len = len;
    begin(Socket(fd), &to)
}

/// Waits for a connection that has begun, if the socket is blocking.
///
/// # Safety
///
/// As connect(2).
unsafe fn wait(fd: c_int, address: *const c_void, len: u32, dont: bool) -> c_int {
    if dont || kernel::is_nonblocking(fd) == Ok(true) {
        return answer(Err(Errno::EINPROGRESS));
    }
    // SAFETY: the caller's.
    let connected = unsafe { imports::connect(fd, address, len) };
    // The program called once, and its own timeout has passed (SO_SNDTIMEO, socket(7)): EINPROGRESS, as after one call.
    if connected == -1 && errno() == Errno::EALREADY {
        return answer(Err(Errno::EINPROGRESS));
    }
    connected
}

/// The address in a message.
///
/// # Safety
///
/// Null, or a `struct msghdr`.
unsafe fn name_of(message: *const c_void) -> (*const c_void, u32) {
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
