//! Waiting for many descriptors at once, without a runtime.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::{NameCall, Result};

/// An epoll instance (epoll(7)) that reports tokens.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// What a descriptor is waited for, and how often it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// As long as it can be read from or has ended.
    Readable,
    /// Whenever more has come or it has ended.
    ReadableEdge,
    /// As long as it can be written to or has ended.
    Writable,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// As it was given to [`Epoll::add`].
    pub token: u64,
    /// There is something to read, or to accept.
    pub readable: bool,
    /// The other end of a connection will send no more.
    pub read_closed: bool,
    /// Both directions have ended, or an error has come.
    pub hung_up: bool,
}

impl Epoll {
    /// An empty one.
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).call("epoll_create1(2)")?;
        Ok(Self(epoll))
    }

    /// Reports `token` for `fd`. It ends when every descriptor of the same open file is closed, in every
    /// process; so [`Epoll::delete`] what others have too.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<()> {
        let data = EventData::new_u64(token);
        epoll::add(&self.0, fd, data, interest.flags()).call("epoll_ctl(EPOLL_CTL_ADD)")
    }

    /// Waits for something else of a descriptor that is watched already.
    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<()> {
        let data = EventData::new_u64(token);
        epoll::modify(&self.0, fd, data, interest.flags()).call("epoll_ctl(EPOLL_CTL_MOD)")
    }

    /// Reports `fd` no more.
    pub fn delete(&self, fd: impl AsFd) -> Result<()> {
        epoll::delete(&self.0, fd).call("epoll_ctl(EPOLL_CTL_DEL)")
    }

    /// Waits until something is ready, for as long as `limit`, and adds it to `found`: nothing if and only if the time
    /// is over. A signal does not end the wait, nor do SIGSTOP and SIGCONT, which interrupt epoll_wait(2) whatever is
    /// blocked (signal(7)).
    pub fn wait(&self, limit: Option<Duration>, found: &mut Vec<Readiness>) -> Result<()> {
        // Without one if it is too far away to be told.
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut events = [Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; MAX_EVENTS];
        let n = loop {
            let left = deadline.map(timespec_until);
            match epoll::wait(&self.0, &mut events[..], left.as_ref()) {
                Err(error) if io::Error::from(error).kind() == io::ErrorKind::Interrupted => {}
                waited => break waited.call("epoll_wait(2)")?,
            }
        };
        let readiness = |event: &Event| {
            let flags = event.flags;
            Readiness {
                token: event.data.u64(),
                readable: flags.contains(EventFlags::IN),
                read_closed: flags.contains(EventFlags::RDHUP),
                hung_up: flags.intersects(EventFlags::HUP | EventFlags::ERR),
            }
        };
        found.extend(events.iter().take(n).map(readiness));
        Ok(())
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

/// An instance is readable when one of what it watches is.
impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Events a call; what is left comes with the next.
const MAX_EVENTS: usize = 64;
