//! The copy buffer: one per thread, shared by all connections of its event loop.
//!
//! A connection borrows it for one read and one write. So an idle connection holds no buffer, and the
//! bytes are still in the CPU cache when they are written.

use std::cell::RefCell;

/// Lends this thread's buffer to `work`, which must not call this function again.
pub(crate) fn with_buffer<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| work(buffer))
}

/// Size of the buffer in bytes; also the most that one direction buffers after a short write.
pub(crate) const BUFFER_SIZE: usize = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER_SIZE].into_boxed_slice());
}
