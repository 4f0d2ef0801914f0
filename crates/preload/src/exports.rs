//! The C functions that programs call in place of their C library's.
//!
//! A thread that is cancelled in accept(2) (pthread_cancel(3)) is unwound through these functions. With `C-unwind` and
//! panic = "abort" the compiler would abort the program there; with `C` these frames have no cleanup, and the C library's
//! unwinder skips them.
#![expect(unsafe_code, reason = "a C interface")]
#![expect(unreachable_pub, reason = "exported by name, not by path")]

mod exec;

use core::ffi::{c_int, c_void};

use peername_preload_common::address::RawAddress;
use peername_preload_common::imports::syscall_ret;
use peername_preload_common::kernel::{self, Errno, Result, SOL_SOCKET, Sysno};
use peername_preload_common::pass;
use peername_preload_common::socket::Socket;

use crate::state::{State, state};
use crate::{accept, imports, listener_cache, standalone, waiter_client};

/// The symbol that the launcher searches the file for: the version of the table that the library reads.
#[unsafe(no_mangle)]
pub static peername_preload_7: u8 = 0;

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    /// Reads the environment before the program can change it.
    extern "C" fn at_load() {
        let _ = state();
        imports::find_functions();
    }
    at_load
};

/// accept(2).
///
/// # Safety
///
/// As accept(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, address: *mut c_void, len: *mut u32) -> c_int {
    // SAFETY: the caller's.
    unsafe { accept4(fd, address, len, 0) }
}

/// accept4(2).
///
/// # Safety
///
/// As accept4(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    fd: c_int,
    address: *mut c_void,
    len: *mut u32,
    flags: c_int,
) -> c_int {
    let accepted = match state() {
        State::On(table) => accept::accept(table, fd, flags),
        State::Off => imports::accept4(fd, flags).map(|(fd, peer)| (Socket(fd), peer)),
        State::Broken => Err(Errno::EACCES),
    };
    let fd = accepted.and_then(|(socket, peer)| {
        // SAFETY: the caller's pointers, for what accept(2) writes to them.
        let written = unsafe { write_out(&peer, address, len) };
        written.map(|()| socket.0).inspect_err(|_| socket.close())
    });
    syscall_ret(fd)
}

/// getpeername(2).
///
/// # Safety
///
/// As getpeername(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, address: *mut c_void, len: *mut u32) -> c_int {
    match state() {
        State::On(table) if !address.is_null() && !len.is_null() => {
            let peer = accept::peer_name(table, Socket(fd));
            // SAFETY: the caller's pointers, for what getpeername(2) writes to them.
            unsafe { return_name(peer, address, len) }
        }
        // SAFETY: as the caller made it.
        _ => unsafe {
            pass_on_past_filter(
                Sysno::getpeername,
                [fd as usize, address as usize, len as usize],
            )
        },
    }
}

/// getsockname(2): returns the header's destination with `--dst`.
///
/// # Safety
///
/// As getsockname(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, address: *mut c_void, len: *mut u32) -> c_int {
    match state() {
        State::On(table)
            if table.settings().policy().show_destination
                && !address.is_null()
                && !len.is_null() =>
        {
            let local = accept::local_name(table, Socket(fd));
            // SAFETY: the caller's pointers, for what getsockname(2) writes to them.
            unsafe { return_name(local, address, len) }
        }
        // SAFETY: as the caller made it.
        _ => unsafe {
            pass_on_past_filter(
                Sysno::getsockname,
                [fd as usize, address as usize, len as usize],
            )
        },
    }
}

/// listen(2).
#[unsafe(no_mangle)]
pub extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let socket = Socket(fd);
    let mut is_reported = false;
    listener_cache::clear();
    match state() {
        State::Off => {}
        State::On(table) => {
            let settings = table.settings();
            let is_covered = socket
                .local()
                .is_some_and(|local| settings.covers(local.port()));
            // A listener on another port is reported, too: if it is the only one, --ports may be mistyped.
            is_reported = socket.protocol().is_some();
            // Not where headers are optional: a peer without one may wait for the server to speak first.
            if is_reported && is_covered && settings.policy().header_required {
                socket.defer_accept();
            }
        }
        State::Broken if socket.protocol().is_some() => {
            kernel::write_stderr(
                "peername: the table of clients can't be opened by this process: start `peername \
                 exec` as the user that the program runs as. It may not listen, because it would \
                 take its proxy for its client.\n",
            );
            return syscall_ret(Err(Errno::EACCES));
        }
        State::Broken => {}
    }
    // SAFETY: as the caller made it.
    let result = unsafe { pass_on_past_filter(Sysno::listen, [fd as usize, backlog as usize, 0]) };
    if is_reported && result == 0 && !standalone::is_standalone() {
        waiter_client::report_listening(socket);
    }
    result
}

/// getsockopt(2): SO_PEERNAME returns the client.
///
/// # Safety
///
/// As getsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut u32,
) -> c_int {
    let args = [
        fd as usize,
        level as usize,
        option as usize,
        value as usize,
        len as usize,
        0,
    ];
    // SAFETY: as the caller made it.
    let result = unsafe { kernel::pass_on(Sysno::getsockopt, args) };
    if result.is_ok()
        && (level, option) == (SOL_SOCKET, SO_PEERNAME)
        && let State::On(table) = state()
        && let Some(client) = accept::client_name(table, Socket(fd))
    {
        // SAFETY: the caller's pointers, by which the kernel has just written an address of the same family.
        let written = unsafe { *len }.min(client.len) as usize;
        // SAFETY: at most as many bytes as the kernel has written.
        unsafe { core::ptr::copy_nonoverlapping(client.bytes.as_ptr(), value.cast(), written) };
    }
    syscall_ret(result.map(|_| 0))
}

/// Returns a socket's name from a C function, as getpeername(2) does.
///
/// # Safety
///
/// As for [`write_out`].
unsafe fn return_name(name: Result<RawAddress>, address: *mut c_void, len: *mut u32) -> c_int {
    // SAFETY: the caller's.
    let written = name.and_then(|name| unsafe { write_out(&name, address, len) });
    syscall_ret(written.map(|()| 0))
}

/// Copies an address to the caller as the kernel does: truncated to the caller's buffer, with the full length.
///
/// # Safety
///
/// `address` is a buffer of the length at `len`; either may be null.
unsafe fn write_out(from: &RawAddress, address: *mut c_void, len: *mut u32) -> Result<()> {
    if address.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's; null is EFAULT.
    let len = unsafe { len.as_mut() }.ok_or(Errno::EFAULT)?;
    if len.cast_signed() < 0 {
        return Err(Errno::EINVAL);
    }
    let n = (*len).min(from.len).min(RawAddress::SIZE as u32) as usize;
    // SAFETY: at most as many bytes as either buffer has.
    unsafe { core::ptr::copy_nonoverlapping(from.bytes.as_ptr(), address.cast(), n) };
    *len = from.len;
    Ok(())
}

/// Makes a system call that the program has made, past the launcher's seccomp filter: with the secret arguments of [`pass`]
/// added.
///
/// # Safety
///
/// As the call with these arguments.
unsafe fn pass_on_past_filter(call: Sysno, [a, b, c]: [usize; 3]) -> c_int {
    let [fifth, sixth] = pass::current().map(|word| word as usize);
    // SAFETY: the caller's; the kernel ignores the arguments that are added.
    let result = unsafe { kernel::pass_on(call, [a, b, c, 0, fifth, sixth]) };
    syscall_ret(result.map(|value| c_int::try_from(value).unwrap_or(0)))
}

/// The option that returns the peer's address, as getpeername(2) does.
const SO_PEERNAME: c_int = 28;
