//! What the program's C library has, if it has it.
#![expect(
    unsafe_code,
    reason = "foreign functions, and symbols that may be missing"
)]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::address::RawAddress;
use crate::kernel::{self, Call, Errno, Result};

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
            let args = [
                listener as usize,
                to as usize,
                &raw mut len as usize,
                flags as usize,
            ];
            // SAFETY: the same.
            unsafe { kernel::pass_on(Call::Accept4, args) }
                .map(|fd| c_int::try_from(fd).unwrap_or(-1))
        }
    }?;
    address.len = len;
    Ok((fd, address))
}

/// The program's errno.
pub(crate) fn set_errno(errno: Errno) {
    if let Some(location) = errno_location() {
        // SAFETY: the calling thread's own errno.
        unsafe { location.write(errno.0) }
    }
}

/// An environment variable, as it was when the program was started or as it is now.
pub(crate) fn environment(name: &[u8]) -> Option<&'static CStr> {
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

type Accept4 = unsafe extern "C" fn(c_int, *mut c_void, *mut u32, c_int) -> c_int;

/// The accept4 that the program would have got without us.
fn next_accept4() -> Option<Accept4> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut found = FOUND.load(Ordering::Acquire);
    if found.is_null() {
        let dlsym: *const c_void = weak!("dlsym");
        // SAFETY: null is `None`; otherwise it is dlsym(3), of this type.
        let dlsym = unsafe { transmute::<*const c_void, Option<Dlsym>>(dlsym) }?;
        // SAFETY: RTLD_NEXT and text that ends with NUL.
        found = unsafe { dlsym(RTLD_NEXT, c"accept4".as_ptr()) };
        FOUND.store(found, Ordering::Release);
    }
    // SAFETY: null is `None`; otherwise it is the function that was asked for.
    unsafe { transmute::<*mut c_void, Option<Accept4>>(found) }
}

type Dlsym = unsafe extern "C" fn(*const c_void, *const c_char) -> *mut c_void;

fn errno() -> Errno {
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
