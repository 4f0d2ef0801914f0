//! The attendant as a process of its own, beside a program with the preloaded library.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use peername_identity::Counter;
use peername_sys::Result;
use peername_sys::pidfd::{Process, Signal};
use peername_sys::poll::wait_readable;

use super::{Attendant, Channel};
use crate::table::SharedTable;

/// Serves until the program and everything that came from it has ended.
///
/// `program` is the process that was started. If no process has loaded the library
/// in time (10 s), the program would take its proxy for its client: it is ended.
///
/// # Errors
///
/// Those of epoll_wait(2) and poll(2).
pub fn run(
    mut attendant: Attendant,
    mut channel: Channel,
    shared: &SharedTable,
    program: &Process,
) -> Result<()> {
    let mut life = Life::new(shared, program);
    while life.goes_on() {
        wait(&attendant, &channel, &life)?;
        channel.serve(&mut attendant);
        for listener in attendant.attend()? {
            attendant.ring(listener);
        }
    }
    Ok(())
}

fn wait(attendant: &Attendant, channel: &Channel, life: &Life<'_>) -> Result<()> {
    let sockets = channel.sockets().chain([attendant.as_fd()]);
    let deadlines = attendant
        .next_deadline()
        .into_iter()
        .chain(channel.next_deadline())
        .chain(life.next_look());
    // Rounded up, or we would be here again before it is time.
    let limit = deadlines
        .min()
        .map(|at| at.saturating_duration_since(Instant::now()) + Duration::from_micros(100));
    wait_readable(sockets.chain(life.program_alive()), limit)?;
    Ok(())
}

/// Whether there is still somebody to serve.
struct Life<'a> {
    shared: &'a SharedTable,
    program: &'a Process,
    /// Until when the library must have been loaded.
    loaded_by: Option<Instant>,
    /// When the program was found ended, and the table unused, for the first time.
    deserted: Option<Instant>,
    ended: bool,
}

impl<'a> Life<'a> {
    fn new(shared: &'a SharedTable, program: &'a Process) -> Self {
        Self {
            shared,
            program,
            loaded_by: Some(Instant::now() + LOADED_WITHIN),
            deserted: None,
            ended: false,
        }
    }

    fn goes_on(&mut self) -> bool {
        self.ended = self.ended || self.program.has_ended();
        self.see_that_it_is_loaded();
        if !self.ended || self.shared.is_in_use() {
            self.deserted = None;
            return true;
        }
        // A process that is just executing another program has neither the old mapping nor the new one.
        let since = *self.deserted.get_or_insert_with(Instant::now);
        since.elapsed() < DESERTED_FOR
    }

    fn see_that_it_is_loaded(&mut self) {
        if self.shared.table().settings().counted(Counter::Loaded) > 0 {
            self.loaded_by = None;
        }
        if self.loaded_by.is_some_and(|by| Instant::now() >= by) {
            self.loaded_by = None;
            eprintln!(
                "peername: the program has not loaded libpeername.so within {} s, so it can't see its \
                 clients; ending it (statically linked? try --mode notify)",
                LOADED_WITHIN.as_secs()
            );
            // It may have ended by itself.
            let _ = self.program.signal(Signal::TERM);
        }
    }

    fn program_alive(&self) -> Option<BorrowedFd<'_>> {
        (!self.ended).then(|| self.program.as_fd())
    }

    fn next_look(&self) -> Option<Instant> {
        match self.ended {
            true => Some(Instant::now() + LOOK_EVERY),
            false => self.loaded_by,
        }
    }
}

/// Dynamic loading comes first in a program's life; this leaves time for scripts that come before it,
/// and for a slow machine.
const LOADED_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Longer than it takes a program to be executed and load the library. The attendant has the program's
/// standard error, so who reads that to its end waits as long.
const DESERTED_FOR: Duration = Duration::from_secs(1);
