//! Shared memory: a file, mapped as atomic words.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::{ptr, slice};

use rustix::fs::{
    FallocateFlags, FlockOperation, MemfdFlags, fallocate, flock, ftruncate, memfd_create,
};
use rustix::io::{Errno, retry_on_intr};

use crate::{NameCall, Result};

/// Creates a file of `len` zero bytes without a path; it is freed with its last descriptor and mapping
/// (memfd_create(2), since Linux 3.17). `name` appears in /proc/PID/maps.
///
/// # Errors
///
/// EMFILE, ENFILE or ENOMEM; EINVAL for a `len` that is too large, EFBIG for one beyond RLIMIT_FSIZE, with a
/// SIGXFSZ that the process has to handle.
pub fn create_anonymous(name: &str, len: usize) -> Result<OwnedFd> {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC).call("memfd_create(2)")?;
    ftruncate(&memory, len as u64).call("ftruncate(2)")?;
    Ok(memory)
}

/// Allocates `len` zero bytes for an empty file (fallocate(2), or writes where that is missing or denied). In a file that is only
/// sized, each page is allocated at its first access, which raises SIGBUS once the file system is full (mmap(2)).
///
/// # Errors
///
/// ENOSPC or EDQUOT on a file system without that much space; EFBIG beyond RLIMIT_FSIZE, with a SIGXFSZ that
/// the process has to handle.
pub fn allocate(mut file: &File, len: usize) -> io::Result<()> {
    let len = len as u64;
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, len)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
            io::copy(&mut io::repeat(0).take(len), &mut file).map(drop)
        }
        allocated => Ok(allocated?),
    }
}

/// Opens the file at `path` for reading and writing.
///
/// # Errors
///
/// ELOOP for a symbolic link, which another user may have created; else those of open(2).
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true);
    options.custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Locks the file for shared use, waiting while another process holds it [exclusively](try_lock_exclusive). The lock
/// belongs to the open file: it is held until no process has a descriptor or a mapping of that file any more (flock(2)).
///
/// # Errors
///
/// EINTR after a signal, ENOLCK without memory.
pub fn lock_shared(file: impl AsFd) -> Result<()> {
    flock(file, FlockOperation::LockShared).call("flock(2)")
}

/// Opens anonymous memory once more, and locks it exclusively, waiting while another process holds the lock. The lock lives as
/// long as the returned file and its mappings: unlike a duplicate descriptor, that file has locks of its own (flock(2)).
///
/// # Errors
///
/// ENOENT without /proc; EINTR after a signal, ENOLCK without memory.
pub fn lock_anonymous(memory: impl AsFd) -> Result<File> {
    let path = format!("/proc/self/fd/{}", memory.as_fd().as_raw_fd());
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.call("open(/proc/self/fd/N)")?;
    flock(&file, FlockOperation::LockExclusive).call("flock(2)")?;
    Ok(file)
}

/// Locks the file exclusively unless another process has [locked](lock_shared) it, without waiting. In either case,
/// this open file's own shared lock may be lost (flock(2)).
pub fn try_lock_exclusive(file: impl AsFd) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Maps the first `len` bytes of a file, readable and writable, for the rest of the process's life.
///
/// `len` is rounded down to whole words. The file must be that long, and stay so: accessing a page
/// beyond its end raises SIGBUS (mmap(2)).
///
/// # Errors
///
/// EACCES for a file that is not open for reading and writing; ENOMEM.
pub fn map_words(file: impl AsFd, len: usize) -> Result<&'static [AtomicU64]> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: a new mapping, at an address of the kernel's choice, touches no existing memory.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error()).call("mmap(2)");
    }
    // SAFETY: the mapping has `len` bytes, begins on a page and is never unmapped; any bits are a
    // valid AtomicU64, and other processes access it atomically, too.
    Ok(unsafe { slice::from_raw_parts(start.cast(), len / size_of::<AtomicU64>()) })
}
