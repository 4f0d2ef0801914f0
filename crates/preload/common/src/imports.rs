//! Symbols of the program's C library, as weak references: each may be missing.
#![expect(
    unsafe_code,
    reason = "foreign functions, and symbols that may be missing"
)]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::iter;
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::kernel::{Errno, Result};

/// The address of a symbol, or null if no library has it: a weak reference.
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
        unsafe { location.write(errno.into_raw()) }
    }
}

/// Whether the C library has set `environ` already. It is not set yet while a library is initialised before the C library.
pub fn has_environment() -> bool {
    !environ().is_null()
}

/// The current value of an environment variable.
pub fn environment(name: &[u8]) -> Option<&'static CStr> {
    // SAFETY: the C library's list; its text is not freed.
    let mut entries = unsafe { entries(environ()) };
    entries.find_map(|text: &'static CStr| {
        let value = text.to_bytes_with_nul().strip_prefix(name)?;
        CStr::from_bytes_with_nul(value.strip_prefix(b"=")?).ok()
    })
}

/// The program's list of its environment; null before the C library has set it.
pub fn environ() -> *const *const c_char {
    let environ: *const *const *const c_char = weak!("environ").cast();
    // SAFETY: if the symbol is there it is a variable of this type (environ(7)).
    unsafe { environ.as_ref() }.copied().unwrap_or(ptr::null())
}

/// The entries of an environment.
///
/// # Safety
///
/// `list` is null, or a list of pointers to texts, the last of which is null (environ(7)). The list and the texts stay for
/// `'a`.
pub unsafe fn entries<'a>(list: *const *const c_char) -> impl Iterator<Item = &'a CStr> + Clone {
    let mut next = list;
    iter::from_fn(move || {
        // SAFETY: null, or one of the list's pointers, of which the null one is the last.
        let &text = unsafe { next.as_ref() }?;
        if text.is_null() {
            return None;
        }
        // SAFETY: the pointer was not null, so another one follows.
        next = unsafe { next.add(1) };
        // SAFETY: each pointer but the last is to text that ends with NUL.
        Some(unsafe { CStr::from_ptr(text) })
    })
}

/// Looks up the function that the program would call without this library (RTLD_NEXT), and caches its address in `cache`; null
/// if there is none. Without dlsym(3), as in a program without libdl before glibc 2.34, it is the function of libc.so.6.
pub fn next_function(name: &CStr, cache: &AtomicPtr<c_void>) -> *mut c_void {
    match cache.load(Ordering::Acquire) {
        address if address == MISSING => return ptr::null_mut(),
        address if !address.is_null() => return address,
        _ => {}
    }
    let dlsym: *const c_void = weak!("dlsym");
    // SAFETY: null is `None`; otherwise it is dlsym(3), of this type.
    let address = match unsafe { transmute::<*const c_void, Option<Dlsym>>(dlsym) } {
        // SAFETY: RTLD_NEXT and text that ends with NUL.
        Some(dlsym) => unsafe { dlsym(RTLD_NEXT, name.as_ptr()) },
        None => find_in_old_glibc(name),
    };
    let found = if address.is_null() { MISSING } else { address };
    cache.store(found, Ordering::Release);
    address
}

/// The cached address of a function that the C library lacks, so that it is not looked up again.
const MISSING: *mut c_void = ptr::without_provenance_mut(1);

/// Defines functions that call the C library's functions of the same name, or evaluate `$missing` where the C library has none;
/// and `$find`, which looks all of them up. Call `$find` when the library is loaded: dlsym(3) takes locks. A signal handler
/// must not take them, nor a child of vfork(2), because its parent may hold them.
#[macro_export]
macro_rules! next_functions {
    ($find:ident: $(
        $(#[$about:meta])*
        $name:ident = $text:literal($($argument:ident: $type:ty),*) -> $result:ty => $missing:expr;
    )*) => {
        $(
            $(#[$about])*
            ///
            /// # Safety
            ///
            /// As the function of this name.
            pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
                type Function = unsafe extern "C" fn($($type),*) -> $result;
                let found = $crate::imports::next_function($text, &found::$name);
                // SAFETY: null is `None`; otherwise it is the function that was asked for.
                match unsafe { core::mem::transmute::<*mut core::ffi::c_void, Option<Function>>(found) } {
                    // SAFETY: the caller's.
                    Some(function) => unsafe { function($($argument),*) },
                    None => $missing,
                }
            }
        )*

        /// Looks up all of these functions.
        pub(crate) fn $find() {
            $( $crate::imports::next_function($text, &found::$name); )*
        }

        #[expect(non_upper_case_globals, reason = "each is named as its function")]
        mod found {
            use core::ffi::c_void;
            use core::ptr;
            use core::sync::atomic::AtomicPtr;

            $( pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut()); )*
        }
    };
}

/// Looks up a function in glibc before 2.34, which has dlsym(3) in a library that not every program loads (libdl). The
/// functions that its own name service uses instead are always there.
fn find_in_old_glibc(name: &CStr) -> *mut c_void {
    type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    type Find = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    let (open, find): (*const c_void, *const c_void) =
        (weak!("__libc_dlopen_mode"), weak!("__libc_dlsym"));
    // SAFETY: null is `None`; otherwise they are these functions of glibc (elf/dl-libc.c).
    let (open, find) = unsafe {
        (
            transmute::<*const c_void, Option<Open>>(open),
            transmute::<*const c_void, Option<Find>>(find),
        )
    };
    let (Some(open), Some(find)) = (open, find) else {
        return ptr::null_mut();
    };
    // SAFETY: the name of a library that is loaded already.
    let library = unsafe { open(c"libc.so.6".as_ptr(), RTLD_NOW | RTLD_DLOPEN) };
    if library.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: an open library and text that ends with NUL.
    unsafe { find(library, name.as_ptr()) }
}

/// Converts a result to the return value of a C function, as a C library does after a system call: the value, or -1 with errno
/// set.
pub fn syscall_ret<T: From<i8>>(result: Result<T>) -> T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        T::from(-1)
    })
}

type Dlsym = unsafe extern "C" fn(*const c_void, *const c_char) -> *mut c_void;

/// The program's errno. EAGAIN in a program without `__errno_location`, where it can't be known: no caller gives up for that.
pub fn errno() -> Errno {
    errno_location().map_or(Errno::EAGAIN, |location| {
        // SAFETY: the calling thread's own errno.
        Errno::new(unsafe { location.read() })
    })
}

fn errno_location() -> Option<*mut c_int> {
    type Location = unsafe extern "C" fn() -> *mut c_int;
    let location: *const c_void = weak!("__errno_location");
    // SAFETY: null is `None`; glibc and musl both have it, of this type.
    let location = unsafe { transmute::<*const c_void, Option<Location>>(location) }?;
    // SAFETY: no arguments; returns the thread's own errno.
    Some(unsafe { location() })
}

const RTLD_NOW: c_int = 2;
/// glibc's `__RTLD_DLOPEN`.
const RTLD_DLOPEN: c_int = c_int::MIN;
const RTLD_NEXT: *const c_void = ptr::without_provenance(usize::MAX);
