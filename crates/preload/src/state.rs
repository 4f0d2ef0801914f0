//! The table that this process uses.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering};

use peername_identity::{PROBE, PROBE_ERRNO, Table};
use peername_preload_common::imports;
use peername_preload_common::kernel::{self, End, Errno, Kept};
use peername_preload_common::pass;

use crate::{propagation, standalone};

/// What this process does.
#[derive(Clone, Copy)]
pub(crate) enum State {
    /// Nothing: there is no launcher, or its supervisor answers the calls of this process, which can't open the
    /// table (it has another user, or another root directory).
    Off,
    /// Accept by this table.
    On(Table<'static>),
    /// There should be a table but it can't be used, and there is no supervisor either: no connection may be
    /// accepted, since the program would take the proxy for the client.
    Broken,
}

/// The state, found out at the first call. Two threads that come first at once both find out the same.
pub(crate) fn state() -> State {
    match FOUND.load(Ordering::Acquire) {
        UNKNOWN => find_out(),
        OFF => State::Off,
        ON => Table::open(TABLE.get()).map_or(State::Broken, State::On),
        _ => State::Broken,
    }
}

fn find_out() -> State {
    let (found, state) = match imports::environment(b"PEERNAME_TABLE") {
        Some(path) => by_launcher(path),
        None => without_launcher(),
    };
    FOUND.store(found, Ordering::Release);
    state
}

fn by_launcher(path: &CStr) -> (u8, State) {
    let words = kernel::map_file(path).ok();
    let Some((words, table)) = words.and_then(|words| Some((words, Table::open(words)?))) else {
        return match is_supervised() {
            true => (OFF, State::Off),
            false => (BROKEN, State::Broken),
        };
    };
    pass::set(table.settings().pass());
    TABLE.keep(words);
    propagation::record();
    (ON, State::On(table))
}

/// Whether the launcher's filter is on this process: calls without the pass are answered by the supervisor then.
fn is_supervised() -> bool {
    kernel::name_with(NO_SOCKET, End::Peer, PROBE).err() == Some(Errno(PROBE_ERRNO))
}

fn without_launcher() -> (u8, State) {
    if !standalone::is_asked_for() {
        return (OFF, State::Off);
    }
    let Some((words, table)) = standalone::table() else {
        return (BROKEN, State::Broken);
    };
    TABLE.keep(words);
    propagation::record();
    (ON, State::On(table))
}

static TABLE: Kept = Kept::new();
static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
const NO_SOCKET: i32 = -1;
const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;
const BROKEN: u8 = 3;
