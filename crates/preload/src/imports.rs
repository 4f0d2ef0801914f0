//! The functions behind the exports: accept4(2) of the kernel, made a cancellation point, and the C library's functions of
//! exec(3).
#![expect(unsafe_code, reason = "foreign functions")]

use core::ffi::{c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use peername_preload_common::address::RawAddress;
use peername_preload_common::imports::{next_function, syscall_ret};
use peername_preload_common::kernel::{self, Errno, Result, Sysno};
use peername_preload_common::next_functions;

/// accept4(2), in which pthread_cancel(3) takes effect as in the C library's own. Returns the descriptor, and its peer's
/// address.
///
/// The C library's own function can't be called: it leaves undefined values in the arguments that the filter checks
/// ([`peername_preload_common::pass`]). So asynchronous cancellation is enabled during the call, as glibc did before 2.41. A
/// thread that is cancelled between the kernel's return and this function's leaks the connection, as with that glibc.
///
/// Another library's constructor may call it before this library is initialised ([`find_functions`]). Then the call is no
/// cancellation point.
pub(crate) fn accept4(listener: c_int, flags: c_int) -> Result<(c_int, RawAddress)> {
    make_cancelable(|| kernel::accept4(listener, flags))
}

/// Waits at most `nanoseconds` until the listener has a connection. A cancellation point, as [`accept4`].
///
/// # Errors
///
/// EAGAIN after that time, EINTR after a signal.
pub(crate) fn wait_acceptable(listener: c_int, nanoseconds: i64) -> Result<()> {
    let is_readable = make_cancelable(|| kernel::poll_readable(listener, nanoseconds))?;
    is_readable.then_some(()).ok_or(Errno::EAGAIN)
}

/// Makes a system call in which pthread_cancel(3) takes effect.
fn make_cancelable<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    let previous = set_cancel_type(ASYNCHRONOUS);
    let result = call();
    if let Some(previous) = previous {
        set_cancel_type(previous);
    }
    result
}

/// pthread_setcanceltype(3). Returns the previous type, or `None` where the C library has no threads.
fn set_cancel_type(kind: c_int) -> Option<c_int> {
    let function = SET_CANCEL_TYPE.load(Ordering::Acquire);
    // SAFETY: null is `None`; otherwise it is the function that was looked up.
    let function = unsafe { transmute::<*mut c_void, Option<SetCancelType>>(function) }?;
    let mut previous = 0;
    // SAFETY: one int is written.
    (unsafe { function(kind, &raw mut previous) } == 0).then_some(previous)
}

/// Looks up all of the C library's functions that this library calls. Call it when the library is loaded ([`next_functions`]).
pub(crate) fn find_functions() {
    next_function(c"pthread_setcanceltype", &SET_CANCEL_TYPE);
    find_exec_functions();
}

/// pthread_setcanceltype(3); null where the C library has no threads.
static SET_CANCEL_TYPE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

type SetCancelType = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
/// PTHREAD_CANCEL_ASYNCHRONOUS, in glibc and in musl.
const ASYNCHRONOUS: c_int = 1;

type Text = *const c_char;
type List = *const Text;

next_functions! { find_exec_functions:
    /// execve(2).
    execve = c"execve"(path: Text, args: List, environment: List) -> c_int => {
        let args = [path as usize, args as usize, environment as usize, 0, 0, 0];
        // SAFETY: as the caller made it.
        syscall_ret(unsafe { kernel::pass_on(Sysno::execve, args) }.map(|_| 0))
    };
    /// execvpe(3). Every C library with dlsym(3) has it.
    execvpe = c"execvpe"(file: Text, args: List, environment: List) -> c_int => syscall_ret(Err(Errno::ENOSYS));
    /// posix_spawn(3). As above.
    posix_spawn = c"posix_spawn"(pid: *mut c_int, path: Text, actions: *const c_void, attributes: *const c_void,
        args: List, environment: List) -> c_int => Errno::ENOSYS.into_raw();
    /// posix_spawnp(3). As above.
    posix_spawnp = c"posix_spawnp"(pid: *mut c_int, file: Text, actions: *const c_void,
        attributes: *const c_void, args: List, environment: List) -> c_int => Errno::ENOSYS.into_raw();
}
