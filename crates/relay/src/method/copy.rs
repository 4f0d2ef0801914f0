//! One buffer per thread, shared by all connections of its loop.
//!
//! A connection borrows it for one read and one write, so that an idle connection holds no buffer and
//! the bytes are still in the cache when they are written.

use std::cell::RefCell;

/// Lends the buffer of this thread to `work`, which must not call back here.
pub(crate) fn with<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| work(buffer))
}

/// Also the most that one direction of a connection can hold back: what a write did not take.
pub(crate) const SIZE: usize = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SIZE].into_boxed_slice());
}
