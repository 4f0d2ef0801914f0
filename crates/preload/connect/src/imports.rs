//! The C library's own functions. Unlike bare system calls they are cancellation points (pthread_cancel(3)).
#![expect(unsafe_code, reason = "foreign functions")]

use core::ffi::{c_int, c_uint, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::AtomicPtr;

use peername_preload_common::imports::{answer, next_function};
use peername_preload_common::kernel::{self, Call};

macro_rules! next {
    ($found:ident, $name:ident = $text:literal, $call:ident($($argument:ident: $type:ty),*) -> $result:ty) => {
        static $found: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

        /// # Safety
        ///
        /// As the function of this name.
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            let found = next_function($text, &$found);
            // SAFETY: null is `None`; otherwise it is the function that was asked for.
            match unsafe { transmute::<*mut c_void, Option<Function>>(found) } {
                // SAFETY: the caller's.
                Some(function) => unsafe { function($($argument),*) },
                None => {
                    let mut args = [0; 6];
                    for (to, from) in args.iter_mut().zip([$($argument as usize),*]) {
                        *to = from;
                    }
                    // SAFETY: the caller's.
                    let result = unsafe { kernel::pass_on(Call::$call, args) };
                    answer(result.map(|value| <$result>::try_from(value).unwrap_or(0)))
                }
            }
        }
    };
}

next!(CONNECT, connect = c"connect", Connect(fd: c_int, address: *const c_void, len: u32) -> c_int);
next!(SENDTO, sendto = c"sendto", SendTo(fd: c_int, data: *const c_void, len: usize, flags: c_int,
    address: *const c_void, address_len: u32) -> isize);
next!(SENDMSG, sendmsg = c"sendmsg", SendMsg(fd: c_int, message: *const c_void, flags: c_int) -> isize);
next!(SENDMMSG, sendmmsg = c"sendmmsg", SendMMsg(fd: c_int, messages: *mut c_void, count: c_uint,
    flags: c_int) -> c_int);

/// Looks the functions up. dlsym(3) takes locks, so this is done when the library is loaded and not in a signal handler.
pub(crate) fn find_functions() {
    next_function(c"connect", &CONNECT);
    next_function(c"sendto", &SENDTO);
    next_function(c"sendmsg", &SENDMSG);
    next_function(c"sendmmsg", &SENDMMSG);
}
