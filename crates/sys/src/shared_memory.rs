//! Memory that processes share: a file, mapped as atomic words.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::AtomicU64;
use std::{ptr, slice};

use crate::{NameCall, Result};

/// Maps the first `len` octets of a file, readable and writable, for the rest of the process's life.
///
/// `len` is rounded down to whole words. The file must be that long, and stay so: touching a page
/// behind its end raises SIGBUS (mmap(2)).
pub fn map_words(file: impl AsFd, len: usize) -> Result<&'static [AtomicU64]> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: a new mapping, at an address of the kernel's choice, touches no memory of ours.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error()).call("mmap(2)");
    }
    // SAFETY: the mapping has `len` octets, begins on a page and is never taken away; any bits are a
    // valid AtomicU64, and what other processes do to it at the same time is what atomics are for.
    Ok(unsafe { slice::from_raw_parts(start.cast(), len / size_of::<AtomicU64>()) })
}
