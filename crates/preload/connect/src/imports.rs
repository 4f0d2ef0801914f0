//! The C library's own functions. Unlike bare system calls they are cancellation points (pthread_cancel(3)).
#![expect(unsafe_code, reason = "foreign functions")]

use core::ffi::{c_int, c_uint, c_void};

use peername_preload_common::imports::syscall_ret;
use peername_preload_common::kernel::{self, Sysno};
use peername_preload_common::next_functions;

next_functions! { find_functions:
    /// connect(2).
    connect = c"connect"(fd: c_int, address: *const c_void, len: u32) -> c_int
        => { // SAFETY: as the caller made it.
            unsafe { pass_on(Sysno::connect, [fd as usize, address as usize, len as usize, 0, 0, 0]) } };
    /// sendto(2).
    sendto = c"sendto"(fd: c_int, data: *const c_void, len: usize, flags: c_int, address: *const c_void, address_len: u32) -> isize
        => { // SAFETY: as the caller made it.
            unsafe { pass_on(Sysno::sendto, [fd as usize, data as usize, len, flags as usize, address as usize, address_len as usize]) } };
    /// sendmsg(2).
    sendmsg = c"sendmsg"(fd: c_int, message: *const c_void, flags: c_int) -> isize
        => { // SAFETY: as the caller made it.
            unsafe { pass_on(Sysno::sendmsg, [fd as usize, message as usize, flags as usize, 0, 0, 0]) } };
    /// sendmmsg(2).
    sendmmsg = c"sendmmsg"(fd: c_int, messages: *mut c_void, count: c_uint, flags: c_int) -> c_int
        => { // SAFETY: as the caller made it.
            unsafe { pass_on(Sysno::sendmmsg, [fd as usize, messages as usize, count as usize, flags as usize, 0, 0]) } };
}

/// The system call itself, where the program has no C library.
///
/// # Safety
///
/// As the call with these arguments.
unsafe fn pass_on<T: From<i8> + TryFrom<usize>>(call: Sysno, args: [usize; 6]) -> T {
    // SAFETY: the caller's.
    let result = unsafe { kernel::pass_on(call, args) };
    syscall_ret(result.map(|value| T::try_from(value).unwrap_or_else(|_| 0.into())))
}
