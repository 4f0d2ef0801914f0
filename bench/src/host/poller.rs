//! Level-triggered epoll with numeric tokens, for generator and backend.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData};
use rustix::io::Errno;

pub(crate) use rustix::event::epoll::EventFlags as Interest;

/// An epoll instance.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self {
            epoll,
            events: Vec::with_capacity(EVENT_BATCH),
        })
    }

    pub(crate) fn add(&self, fd: impl AsFd, token: usize, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(
            &self.epoll,
            fd,
            EventData::new_u64(token as u64),
            interest,
        )?)
    }

    pub(crate) fn modify(&self, fd: impl AsFd, token: usize, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(
            &self.epoll,
            fd,
            EventData::new_u64(token as u64),
            interest,
        )?)
    }

    /// Waits at most `timeout`, and replaces the content of `ready` by the tokens that are ready. A wait that a signal
    /// interrupts returns none.
    pub(crate) fn wait(
        &mut self,
        timeout: Duration,
        ready: &mut Vec<(usize, Interest)>,
    ) -> io::Result<()> {
        ready.clear();
        self.events.clear();
        // Whole milliseconds, rounded up: epoll_wait before Linux 5.11 has no finer timeout, and rounding
        // down would busy-loop through the last one.
        let timeout = Duration::from_millis(timeout.as_millis() as u64 + 1);
        let timeout = timeout.try_into().map_err(io::Error::other)?;
        match epoll::wait(
            &self.epoll,
            spare_capacity(&mut self.events),
            Some(&timeout),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        ready.extend(
            self.events
                .iter()
                .map(|event| (event.data.u64() as usize, event.flags)),
        );
        Ok(())
    }
}

/// Events for each call; more would only delay the handling of the first.
const EVENT_BATCH: usize = 256;
