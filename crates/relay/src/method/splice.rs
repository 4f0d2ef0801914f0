//! Pipes for splicing, lent to a direction while it moves bulk and kept for the next one.
//!
//! A pipe costs two descriptors and two system calls to make, so an idle connection has none, and a
//! few idle pipes are kept by each thread.

use std::cell::RefCell;

use peername_sys::tcp::splice::Pipe;

/// How many pipes this thread may have, lent and idle. Each takes two descriptors, which are then not
/// there for connections; without one, bytes are copied. Until this is called: 16.
pub fn limit(most: usize) {
    POOL.with_borrow_mut(|pool| pool.most = most);
}

/// An empty pipe; `None` when the thread has as many out as it may, or no descriptor is left: the
/// caller copies instead.
pub(crate) fn borrow() -> Option<Pipe> {
    POOL.with_borrow_mut(|pool| {
        let pipe = match pool.idle.pop() {
            Some(pipe) => pipe,
            None if pool.lent < pool.most => Pipe::new().ok()?,
            None => return None,
        };
        pool.lent += 1;
        Some(pipe)
    })
}

/// Takes back a pipe. One that still holds bytes must not be lent again and is closed.
pub(crate) fn give_back(pipe: Pipe, empty: bool) {
    POOL.with_borrow_mut(|pool| {
        pool.lent -= 1;
        if empty && pool.idle.len() < MOST_IDLE && pool.idle.len() + pool.lent < pool.most {
            pool.idle.push(pipe);
        }
    });
}

struct Pool {
    idle: Vec<Pipe>,
    lent: usize,
    most: usize,
}

/// Enough for bursts to find one, few enough not to matter.
const MOST_IDLE: usize = 32;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { idle: Vec::new(), lent: 0, most: 16 }) };
}
