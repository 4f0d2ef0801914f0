//! accept4(2) as the program's C library has it.
#![expect(unsafe_code, reason = "a foreign function")]

use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::AtomicPtr;

use peername_preload_common::address::RawAddress;
use peername_preload_common::imports::{errno, next_function};
use peername_preload_common::kernel::{self, Call, Result};

/// accept4(2) as the C library has it: unlike the bare system call it is a place where
/// pthread_cancel(3) takes effect. The descriptor, and its peer's address.
pub(crate) fn accept4(listener: c_int, flags: c_int) -> Result<(c_int, RawAddress)> {
    let mut address = RawAddress::EMPTY;
    let mut len = RawAddress::SIZE as u32;
    let to: *mut c_void = (&raw mut address.bytes).cast();
    let fd = match next_accept4() {
        // SAFETY: as the system call: at most `len` octets are written, and one u32.
        Some(accept4) => match unsafe { accept4(listener, to, &raw mut len, flags) } {
            -1 => Err(errno()),
            fd => Ok(fd),
        },
        None => {
            let len = &raw mut len as usize;
            let args = [listener as usize, to as usize, len, flags as usize, 0, 0];
            // SAFETY: the same.
            unsafe { kernel::pass_on(Call::Accept4, args) }
                .map(|fd| c_int::try_from(fd).unwrap_or(-1))
        }
    }?;
    address.len = len;
    Ok((fd, address))
}

type Accept4 = unsafe extern "C" fn(c_int, *mut c_void, *mut u32, c_int) -> c_int;

fn next_accept4() -> Option<Accept4> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let found = next_function(c"accept4", &FOUND);
    // SAFETY: null is `None`; otherwise it is the function that was asked for.
    unsafe { transmute::<*mut c_void, Option<Accept4>>(found) }
}
