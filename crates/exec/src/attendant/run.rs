//! The attendant as a process of its own, beside a program with the preloaded library.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use peername_identity::Counter;
use peername_sys::{NameCall, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};

use super::{Attendant, Channel};
use crate::table::SharedTable;

/// Serves until the program and everything that came from it has ended.
///
/// `program` is the process that was started (pidfd_open(2)). If no process has loaded the library
/// in time (10 s), the program would take its proxy for its client: it is ended.
///
/// # Errors
///
/// Those of epoll_wait(2) and poll(2).
pub fn run(
    mut attendant: Attendant,
    mut channel: Channel,
    shared: &SharedTable,
    program: &OwnedFd,
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
    let sockets = channel.sockets();
    let mut fds: Vec<PollFd<'_>> = sockets
        .chain(life.program_alive())
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    fds.push(PollFd::new(attendant, PollFlags::IN));
    let deadlines = attendant
        .next_deadline()
        .into_iter()
        .chain(life.next_look());
    let timeout = deadlines.min().map(|at| {
        // Rounded up, or we would be here again before it is time.
        let left = at.saturating_duration_since(Instant::now()) + Duration::from_micros(100);
        Timespec::try_from(left).unwrap_or(Timespec {
            tv_sec: i64::MAX,
            tv_nsec: 0,
        })
    });
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).call("poll(2)"),
    }
}

/// Whether there is still somebody to serve.
struct Life<'a> {
    shared: &'a SharedTable,
    program: &'a OwnedFd,
    /// Until when the library must have been loaded.
    loaded_by: Option<Instant>,
    /// When the program was found ended, and the table unused, for the first time.
    deserted: Option<Instant>,
    ended: bool,
}

impl<'a> Life<'a> {
    fn new(shared: &'a SharedTable, program: &'a OwnedFd) -> Self {
        Self {
            shared,
            program,
            loaded_by: Some(Instant::now() + LOADED_WITHIN),
            deserted: None,
            ended: false,
        }
    }

    fn goes_on(&mut self) -> bool {
        self.ended = self.ended || has_ended(self.program);
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
            let _ = pidfd_send_signal(self.program, Signal::TERM);
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

/// A pidfd is readable once its process has ended (pidfd_open(2)).
fn has_ended(program: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(program, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0)
}

/// Dynamic loading comes first in a program's life; this leaves time for scripts that come before it,
/// and for a slow machine.
const LOADED_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Longer than it takes a program to be executed and load the library. The attendant has the program's
/// standard error, so who reads that to its end waits as long.
const DESERTED_FOR: Duration = Duration::from_secs(1);
