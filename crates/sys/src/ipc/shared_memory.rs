//! Memory that processes share: a file, mapped as atomic words.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::{ptr, slice};

use rustix::fs::{FlockOperation, MemfdFlags, flock, ftruncate, memfd_create};

use crate::{NameCall, Result};

/// A file of `len` octets, all zero, that has no path and is gone with its last descriptor and mapping
/// (memfd_create(2), since Linux 3.17). `name` is for people who read /proc/PID/maps.
pub fn create_anonymous(name: &str, len: usize) -> Result<OwnedFd> {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC).call("memfd_create(2)")?;
    ftruncate(&memory, len as u64).call("ftruncate(2)")?;
    Ok(memory)
}

/// Opens the file at this path to read and write. ELOOP where that is a symbolic link: somebody else may
/// have put it there.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true);
    options.custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Marks the file as in use, waiting while somebody holds it [alone](try_lock_exclusive). The mark belongs to the open
/// file: it stays until that has no descriptor and no mapping any more, in any process (flock(2)).
pub fn lock_shared(file: impl AsFd) -> Result<()> {
    flock(file, FlockOperation::LockShared).call("flock(2)")
}

/// Takes the file for us alone if nobody else has [marked](lock_shared) it, without waiting. Whether or not
/// that was so, our own mark may be gone (flock(2)).
pub fn try_lock_exclusive(file: impl AsFd) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

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
