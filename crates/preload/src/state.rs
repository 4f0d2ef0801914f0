//! The table of this process, opened at the first call.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering};

use peername_identity::{FILTER_PROBE, FILTER_PROBE_ERRNO, Table};
use peername_preload_common::imports;
use peername_preload_common::kernel::{self, Endpoint, Errno, MappingCell};
use peername_preload_common::pass;

use crate::{propagation, standalone};

/// Whether this process reads headers, and in which table it stores clients.
#[derive(Clone, Copy)]
pub(crate) enum State {
    /// Calls go to the kernel unchanged: there is no launcher, or its supervisor answers the calls of this process, which
    /// can't open the table (it has another user, or another root directory).
    Off,
    /// Headers are read, and clients stored in this table.
    On(Table<'static>),
    /// There should be a table but it can't be opened, and there is no supervisor either: every accept(2) fails, since the
    /// program would take the proxy for the client.
    Broken,
}

/// Returns the state, which the first call determines and caches; concurrent first calls determine the same.
pub(crate) fn state() -> State {
    match CACHED.load(Ordering::Acquire) {
        UNKNOWN => determine(),
        OFF => State::Off,
        ON => Table::open(TABLE.get()).map_or(State::Broken, State::On),
        _ => State::Broken,
    }
}

fn determine() -> State {
    let (cached, state) = match imports::environment(b"PEERNAME_TABLE") {
        Some(path) => open_table(path),
        None => open_standalone(),
    };
    CACHED.store(cached, Ordering::Release);
    state
}

fn open_table(path: &CStr) -> (u8, State) {
    let words = kernel::map_file(path).unwrap_or_default();
    let Some(table) = Table::open(words) else {
        return if is_supervised() {
            (OFF, State::Off)
        } else {
            (BROKEN, State::Broken)
        };
    };
    pass::set(table.settings().pass());
    TABLE.set(words);
    propagation::record();
    (ON, State::On(table))
}

/// Whether this process has the launcher's filter, so that the supervisor answers calls without the secret arguments.
fn is_supervised() -> bool {
    kernel::socket_name_with(NO_SOCKET, Endpoint::Peer, FILTER_PROBE).err()
        == Some(Errno::new(FILTER_PROBE_ERRNO))
}

fn open_standalone() -> (u8, State) {
    if !standalone::is_requested() {
        return (OFF, State::Off);
    }
    let Some((words, table)) = standalone::create_table() else {
        return (BROKEN, State::Broken);
    };
    TABLE.set(words);
    propagation::record();
    (ON, State::On(table))
}

static TABLE: MappingCell = MappingCell::new();
static CACHED: AtomicU8 = AtomicU8::new(UNKNOWN);
const NO_SOCKET: i32 = -1;
const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;
const BROKEN: u8 = 3;
