//! The table that this process uses.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use peername_identity::{Counter, Table};

use crate::{alone, imports, kernel};

/// What this process does.
#[derive(Clone, Copy)]
pub(crate) enum State {
    /// Nobody has asked for anything.
    Off,
    /// Accept by this table.
    On(Table<'static>),
    /// There should be a table but it can't be used: no connection may be accepted, since the program
    /// would take the proxy for the client.
    Broken,
}

/// The state, found out at the first call. Two threads that come first at once both find out the same.
pub(crate) fn state() -> State {
    match LEN.load(Ordering::Acquire) {
        UNKNOWN => find_out(),
        OFF => State::Off,
        BROKEN => State::Broken,
        len => on(START.load(Ordering::Acquire), len),
    }
}

fn find_out() -> State {
    let Some(path) = imports::environment(b"PEERNAME_TABLE") else {
        return without_launcher();
    };
    let words = kernel::map_file(path).ok();
    let Some((words, table)) = words.and_then(|words| Some((words, Table::open(words)?))) else {
        LEN.store(BROKEN, Ordering::Release);
        return State::Broken;
    };
    table.settings().count(Counter::Loaded);
    keep(words);
    State::On(table)
}

fn without_launcher() -> State {
    if !alone::is_asked_for() {
        LEN.store(OFF, Ordering::Release);
        return State::Off;
    }
    match alone::table() {
        Some((words, table)) => {
            keep(words);
            State::On(table)
        }
        None => {
            LEN.store(BROKEN, Ordering::Release);
            State::Broken
        }
    }
}

fn keep(words: &'static [AtomicU64]) {
    START.store(words.as_ptr().expose_provenance(), Ordering::Release);
    LEN.store(words.len(), Ordering::Release);
}

fn on(start: usize, len: usize) -> State {
    Table::open(kernel::mapped(start, len)).map_or(State::Broken, State::On)
}

static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(UNKNOWN);
const UNKNOWN: usize = 0;
const OFF: usize = 1;
const BROKEN: usize = 2;
