//! Pipes for splicing, lent to a direction while it moves bulk and kept for the next one.
//!
//! A pipe costs two descriptors and two system calls to make, so an idle connection has none, and a
//! few idle pipes are kept by each thread.

use std::cell::RefCell;

use peername_sys::pipe::Pipe;

/// An empty pipe; `None` when the thread has as many out as it may, or no descriptor is left: the
/// caller copies instead.
pub(crate) fn borrow() -> Option<Pipe> {
    POOL.with_borrow_mut(|pool| {
        if pool.lent == MOST_LENT {
            return None;
        }
        let pipe = pool.idle.pop().or_else(|| Pipe::new().ok())?;
        pool.lent += 1;
        Some(pipe)
    })
}

/// Takes back a pipe. One that still holds bytes must not be lent again and is closed.
pub(crate) fn give_back(pipe: Pipe, empty: bool) {
    POOL.with_borrow_mut(|pool| {
        pool.lent -= 1;
        if empty && pool.idle.len() < MOST_IDLE {
            pool.idle.push(pipe);
        }
    });
}

#[derive(Default)]
struct Pool {
    idle: Vec<Pipe>,
    lent: usize,
}

/// Each lent pipe takes two descriptors from those left for connections; splicing more directions
/// at once than this gains nothing that copying would not give.
const MOST_LENT: usize = 256;
const MOST_IDLE: usize = 32;

thread_local! {
    static POOL: RefCell<Pool> = RefCell::default();
}
