//! The secret arguments that let the library's system calls pass the launcher's seccomp filter: the fifth and sixth of
//! accept4(2), listen(2), getpeername(2) and getsockname(2), which the kernel ignores.

use core::sync::atomic::{AtomicU64, Ordering};

/// Sets the secret arguments of all further calls. Until then, and where there is no filter, they are zero.
pub fn set([first, second]: [u64; 2]) {
    let [fifth, sixth] = &PASS;
    fifth.store(first, Ordering::Relaxed);
    sixth.store(second, Ordering::Relaxed);
}

/// Returns the secret arguments that calls are made with.
pub fn current() -> [u64; 2] {
    let [fifth, sixth] = &PASS;
    [fifth.load(Ordering::Relaxed), sixth.load(Ordering::Relaxed)]
}

static PASS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
