//! Level-triggered epoll with numbers for tokens: all that generator and backend need.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData};
use rustix::io::Errno;

pub(crate) use rustix::event::epoll::EventFlags as Interest;

/// Descriptors to wait for.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self {
            epoll,
            events: Vec::with_capacity(BATCH),
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

    /// Puts the descriptors that are ready into `ready`, which it empties first. Waits at most
    /// `timeout`; an interrupted wait is an empty one.
    pub(crate) fn wait(
        &mut self,
        timeout: Duration,
        ready: &mut Vec<(usize, Interest)>,
    ) -> io::Result<()> {
        ready.clear();
        self.events.clear();
        // Whole milliseconds, rounded up: epoll_wait before 5.11 knows nothing finer, and rounding
        // down would spin through the last one.
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

/// Events taken per call; more would only make the first of them wait for the last.
const BATCH: usize = 256;
