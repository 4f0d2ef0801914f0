//! The pipe pool for splice(2): a direction acquires a pipe while it moves bulk, and releases it when it runs dry.
//!
//! A pipe costs two descriptors, and two system calls to open. So an idle connection has none, and each
//! thread keeps a few idle pipes.

use std::cell::RefCell;

use peername_sys::tcp::splice::Pipe;

/// Limits the pipes of this thread, in use and idle. Each takes two descriptors from the number that is
/// left for connections; without a pipe, bytes are copied. The default is 16.
pub fn limit_pipes(max: usize) {
    POOL.with_borrow_mut(|pool| pool.max = max);
}

/// Acquires an empty pipe. `None` when the limit is reached or no descriptor is left; the caller copies then.
pub(crate) fn acquire() -> Option<Pipe> {
    POOL.with_borrow_mut(|pool| {
        let pipe = match pool.idle.pop() {
            Some(pipe) => pipe,
            None if pool.in_use < pool.max => Pipe::new().ok()?,
            None => return None,
        };
        pool.in_use += 1;
        Some(pipe)
    })
}

/// Returns a pipe to the pool. A pipe that still holds bytes must not be used again and is closed.
pub(crate) fn release(pipe: Pipe, is_empty: bool) {
    POOL.with_borrow_mut(|pool| {
        pool.in_use -= 1;
        if is_empty && pool.idle.len() < MAX_IDLE_PIPES && pool.idle.len() + pool.in_use < pool.max
        {
            pool.idle.push(pipe);
        }
    });
}

struct PipePool {
    idle: Vec<Pipe>,
    in_use: usize,
    max: usize,
}

/// Idle pipes that a thread keeps: enough for bursts, few enough not to matter.
const MAX_IDLE_PIPES: usize = 32;

/// The limit until [`limit_pipes`] is called.
const DEFAULT_MAX_PIPES: usize = 16;

thread_local! {
    static POOL: RefCell<PipePool> =
        const { RefCell::new(PipePool { idle: Vec::new(), in_use: 0, max: DEFAULT_MAX_PIPES }) };
}
