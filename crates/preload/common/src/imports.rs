//! What the program's C library has, if it has it.
#![expect(
    unsafe_code,
    reason = "foreign functions, and symbols that may be missing"
)]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::kernel::{Errno, Result};

/// The address of a symbol, or null if nobody has it: what a weak reference is in C.
macro_rules! weak {
    ($name:literal) => {{
        let address: *const c_void;
        // SAFETY: reads the address from the table that the dynamic linker has filled.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) address,
                options(nostack, preserves_flags, readonly, pure),
            );
        }
        // SAFETY: the same.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("adrp {0}, :got:", $name),
                concat!("ldr {0}, [{0}, :got_lo12:", $name, "]"),
                out(reg) address,
                options(nostack, preserves_flags, readonly, pure),
            );
        }
        address
    }};
}

/// Sets the program's errno.
pub fn set_errno(errno: Errno) {
    if let Some(location) = errno_location() {
        // SAFETY: the calling thread's own errno.
        unsafe { location.write(errno.0) }
    }
}

/// Whether the C library has been given the environment yet. Where it is not the first to be
/// initialised, that is not so from the beginning.
pub fn has_environment() -> bool {
    let environ: *const *const *const c_char = weak!("environ").cast();
    // SAFETY: if the symbol is there it is a variable of this type (environ(7)).
    unsafe { environ.as_ref() }.is_some_and(|environ| !environ.is_null())
}

/// An environment variable, as it was when the program was started or as it is now.
pub fn environment(name: &[u8]) -> Option<&'static CStr> {
    let environ: *const *const *const c_char = weak!("environ").cast();
    // SAFETY: if the symbol is there it is a variable of this type (environ(7)).
    let mut entry = *unsafe { environ.as_ref() }?;
    loop {
        // SAFETY: a list of pointers that ends with a null one, or null itself before the C library
        // has set it.
        let &text = unsafe { entry.as_ref() }?;
        if text.is_null() {
            return None;
        }
        // SAFETY: each points to text that ends with NUL, and such is not freed.
        let text = unsafe { CStr::from_ptr(text) };
        let value = text.to_bytes_with_nul().strip_prefix(name);
        if let Some(value) = value.and_then(|rest| rest.strip_prefix(b"=")) {
            return CStr::from_bytes_with_nul(value).ok();
        }
        // SAFETY: this was not the last one.
        entry = unsafe { entry.add(1) };
    }
}

/// The address of the function that the program would have got without us, looked up once; null if
/// there is none.
pub fn next_function(name: &CStr, found: &AtomicPtr<c_void>) -> *mut c_void {
    let address = found.load(Ordering::Acquire);
    if !address.is_null() {
        return address;
    }
    let dlsym: *const c_void = weak!("dlsym");
    // SAFETY: null is `None`; otherwise it is dlsym(3), of this type.
    let dlsym = unsafe { transmute::<*const c_void, Option<Dlsym>>(dlsym) };
    // SAFETY: RTLD_NEXT and text that ends with NUL.
    let address = dlsym.map_or(ptr::null_mut(), |dlsym| unsafe {
        dlsym(RTLD_NEXT, name.as_ptr())
    });
    found.store(address, Ordering::Release);
    address
}

/// What a C function returns for this: the value, or -1 and errno.
pub fn answer<T: From<i8>>(result: Result<T>) -> T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        T::from(-1)
    })
}

type Dlsym = unsafe extern "C" fn(*const c_void, *const c_char) -> *mut c_void;

/// The program's errno.
pub fn errno() -> Errno {
    // SAFETY: the calling thread's own errno.
    errno_location().map_or(Errno::AGAIN, |location| Errno(unsafe { location.read() }))
}

fn errno_location() -> Option<*mut c_int> {
    type Location = unsafe extern "C" fn() -> *mut c_int;
    let location: *const c_void = weak!("__errno_location");
    // SAFETY: null is `None`; glibc and musl both have it, of this type.
    let location = unsafe { transmute::<*const c_void, Option<Location>>(location) }?;
    // SAFETY: no arguments; returns the thread's own errno.
    Some(unsafe { location() })
}

const RTLD_NEXT: *const c_void = ptr::without_provenance(usize::MAX);
