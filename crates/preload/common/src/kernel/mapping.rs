//! Shared memory mappings.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::{ptr, slice};

use syscalls::{Sysno, syscall};

use super::call::{NO_DESCRIPTOR, O_RDWR, Result, close, open_with};

/// Maps a whole file as words, and marks it as in use for as long as it is mapped (flock(2): the mapping keeps the open file
/// description, which holds the lock).
pub fn map_file(path: &CStr) -> Result<&'static [AtomicU64]> {
    let fd = open_with(path, O_RDWR)?;
    let words = map_locked(fd);
    close(fd);
    words
}

fn map_locked(fd: c_int) -> Result<&'static [AtomicU64]> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::flock, fd, LOCK_SH) }?;
    // SAFETY: as above.
    let len = unsafe { syscall!(Sysno::lseek, fd, 0, SEEK_END) }?;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that is there.
    let start = unsafe { syscall!(Sysno::mmap, 0, len, PROT_RW, MAP_SHARED, fd, 0) }?;
    Ok(as_words(start, len >> 3))
}

/// Maps new zeroed memory that forked processes share, as words.
pub fn map_fresh(len: usize) -> Result<&'static [AtomicU64]> {
    let flags = MAP_SHARED | MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that is there.
    let start = unsafe { syscall!(Sysno::mmap, 0, len, PROT_RW, flags, NO_DESCRIPTOR, 0) }?;
    Ok(as_words(start, len >> 3))
}

fn as_words(start: usize, words: usize) -> &'static [AtomicU64] {
    let start = ptr::with_exposed_provenance::<AtomicU64>(start);
    // SAFETY: the mapping has `words` words, begins on a page and is never unmapped; every bit pattern is a valid AtomicU64.
    // The file belongs to the launcher's user, who does not shorten it.
    unsafe { slice::from_raw_parts(start, words) }
}

/// A static cell for a mapping ([`map_file`], [`map_fresh`]), readable by many threads.
#[derive(Debug)]
pub struct MappingCell {
    start: AtomicUsize,
    words: AtomicUsize,
}

impl MappingCell {
    /// An empty cell.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self {
            start: AtomicUsize::new(0),
            words: AtomicUsize::new(0),
        }
    }

    /// Stores a mapping. All mappings stored in one cell must have the same size.
    pub fn set(&self, words: &'static [AtomicU64]) {
        self.start
            .store(words.as_ptr().expose_provenance(), Ordering::Release);
        self.words.store(words.len(), Ordering::Release);
    }

    /// Returns the mapping stored last; empty if there is none.
    pub fn get(&self) -> &'static [AtomicU64] {
        match self.words.load(Ordering::Acquire) {
            0 => &[],
            words => as_words(self.start.load(Ordering::Acquire), words),
        }
    }
}

const LOCK_SH: usize = 1;
const SEEK_END: usize = 2;
const PROT_RW: usize = 3;
const MAP_SHARED: usize = 1;
const MAP_ANONYMOUS: usize = 0x20;
