//! accept4(2) of the kernel, as a cancellation point of the program's C library.
#![expect(unsafe_code, reason = "a foreign function")]

use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::AtomicPtr;

use peername_preload_common::address::RawAddress;
use peername_preload_common::imports::next_function;
use peername_preload_common::kernel::{self, Result};

/// accept4(2), in which pthread_cancel(3) takes effect as in the C library's own. The descriptor, and its peer's
/// address.
///
/// The C library's own can't be called: it leaves the arguments that the filter looks at to chance
/// ([`peername_preload_common::pass`]). So the thread is cancelled asynchronously meanwhile, which is what glibc
/// did before 2.41. One that is cancelled between the kernel's return and ours leaks the connection, as it did there.
pub(crate) fn accept4(listener: c_int, flags: c_int) -> Result<(c_int, RawAddress)> {
    let before = set_cancel_type(ASYNCHRONOUS);
    let accepted = kernel::accept4(listener, flags);
    if let Some(before) = before {
        set_cancel_type(before);
    }
    accepted
}

/// pthread_setcanceltype(3). The type before, or `None` where the C library has no threads.
fn set_cancel_type(kind: c_int) -> Option<c_int> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let found = next_function(c"pthread_setcanceltype", &FOUND);
    // SAFETY: null is `None`; otherwise it is the function that was asked for.
    let set = unsafe { transmute::<*mut c_void, Option<SetCancelType>>(found) }?;
    let mut before = 0;
    // SAFETY: one int is written.
    (unsafe { set(kind, &raw mut before) } == 0).then_some(before)
}

type SetCancelType = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
/// The same in glibc and musl.
const ASYNCHRONOUS: c_int = 1;
