//! An epoll instance (epoll(7)), for code without a runtime.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::{NameCall, Result};

/// An epoll instance (epoll(7)) that reports tokens.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// The events to wait for, and how often they are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Readable or hung up, level-triggered.
    Readable,
    /// Readable or hung up, edge-triggered: reported whenever more arrives.
    ReadableEdge,
    /// Writable or hung up, level-triggered.
    Writable,
}

/// An event of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// The token given to [`Epoll::add`].
    pub token: u64,
    /// There is something to read or to accept.
    pub readable: bool,
    /// The peer has sent FIN (EPOLLRDHUP).
    pub read_closed: bool,
    /// Both directions are closed, or there is an error (EPOLLHUP, EPOLLERR).
    pub hung_up: bool,
}

impl Epoll {
    /// Opens an empty instance.
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).call("epoll_create1(2)")?;
        Ok(Self(epoll))
    }

    /// Adds `fd`: its events are reported with `token`. The registration ends when every descriptor of the same open
    /// file is closed, in every process; so [`Epoll::delete`] a file that is open elsewhere, too.
    ///
    /// # Errors
    ///
    /// EEXIST for a descriptor that was added already; ENOMEM, ENOSPC (`fs.epoll.max_user_watches`).
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<()> {
        let data = EventData::new_u64(token);
        epoll::add(&self.0, fd, data, interest.flags()).call("epoll_ctl(EPOLL_CTL_ADD)")
    }

    /// Changes the interest of a descriptor that was added.
    ///
    /// # Errors
    ///
    /// ENOENT for a descriptor that was not added.
    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<()> {
        let data = EventData::new_u64(token);
        epoll::modify(&self.0, fd, data, interest.flags()).call("epoll_ctl(EPOLL_CTL_MOD)")
    }

    /// Removes `fd`.
    ///
    /// # Errors
    ///
    /// ENOENT for a descriptor that was not added.
    pub fn delete(&self, fd: impl AsFd) -> Result<()> {
        epoll::delete(&self.0, fd).call("epoll_ctl(EPOLL_CTL_DEL)")
    }

    /// Waits for events, at most for `limit`, and appends them to `found`. It appends none if, and only if, the timeout has
    /// passed. A signal does not end the wait, nor do SIGSTOP and SIGCONT, which interrupt epoll_wait(2) even if all signals
    /// are blocked (signal(7)).
    ///
    /// # Errors
    ///
    /// None in practice: epoll_wait(2) fails only for invalid arguments.
    pub fn wait(&self, limit: Option<Duration>, found: &mut Vec<Readiness>) -> Result<()> {
        // No deadline if it is too far away to be represented.
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut events = [Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; MAX_EVENTS];
        let n = loop {
            let left = deadline.map(timespec_until);
            match epoll::wait(&self.0, &mut events[..], left.as_ref()) {
                Err(Errno::INTR) => {}
                waited => break waited.call("epoll_wait(2)")?,
            }
        };
        found.extend(events.iter().take(n).map(Readiness::from));
        Ok(())
    }
}

impl From<&Event> for Readiness {
    fn from(event: &Event) -> Self {
        let flags = event.flags;
        Self {
            token: event.data.u64(),
            readable: flags.contains(EventFlags::IN),
            read_closed: flags.contains(EventFlags::RDHUP),
            hung_up: flags.intersects(EventFlags::HUP | EventFlags::ERR),
        }
    }
}

fn timespec_until(deadline: Instant) -> Timespec {
    let left = deadline.saturating_duration_since(Instant::now());
    Timespec {
        tv_sec: left.as_secs().cast_signed(),
        tv_nsec: left.subsec_nanos().into(),
    }
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Self::Readable => EventFlags::IN | EventFlags::RDHUP,
            Self::ReadableEdge => EventFlags::IN | EventFlags::RDHUP | EventFlags::ET,
            Self::Writable => EventFlags::OUT,
        }
    }
}

/// An instance is readable when it has events.
impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Events per call of epoll_wait(2); the next call returns the rest.
const MAX_EVENTS: usize = 64;
