//! Waiting for thousands of sockets with one descriptor.
//!
//! An epoll instance can be waited for like any descriptor. So all sockets of a worker's sessions
//! stand in one of its own, and the runtime above knows a single descriptor, however many they are.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use crate::{NameCall, Result};

/// An epoll instance (epoll(7)), readable when one of its sockets is. Level-triggered: what is not
/// read to its end is reported again.
#[derive(Debug)]
pub struct AsyncEpoll(AsyncFd<OwnedFd>);

impl AsyncEpoll {
    /// An empty one. Must be called inside a tokio runtime, which then waits for it.
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).call("epoll_create1(2)")?;
        // SAFETY: an OwnedFd is open and the same for as long as it lives, and AsyncFd owns it.
        let registered = unsafe { AsyncFd::register_with_interest(epoll, Interest::READABLE) };
        let registered = registered.map_err(|error| error.into_parts().1);
        Ok(Self(registered.call("epoll_ctl(EPOLL_CTL_ADD)")?))
    }

    /// Waits until something may be ready. What was found to be read to its end is to be told to the
    /// guard ([`AsyncFdReadyGuard::clear_ready`]); without that, this returns at once.
    pub async fn readable(&self) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
        self.0.readable().await
    }

    /// Reports `token` when `socket` can be read from or has an error. Closing the socket ends that.
    pub fn add(&self, socket: impl AsFd, token: u64) -> Result<()> {
        epoll::add(
            self.0.get_ref(),
            socket,
            EventData::new_u64(token),
            EventFlags::IN,
        )
        .call("epoll_ctl(EPOLL_CTL_ADD)")
    }

    /// Reports nothing of `socket` any more: needed where another descriptor of it stays open.
    pub fn delete(&self, socket: impl AsFd) -> Result<()> {
        epoll::delete(self.0.get_ref(), socket).call("epoll_ctl(EPOLL_CTL_DEL)")
    }

    /// Adds the tokens of what is ready now to `ready`, without waiting; returns whether there may be
    /// more.
    pub fn collect_ready(&self, ready: &mut Vec<u64>) -> Result<bool> {
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; MAX_EVENTS];
        let n = epoll::wait(self.0.get_ref(), &mut events[..], Some(&NOW)).call("epoll_wait(2)")?;
        ready.extend(events.iter().take(n).map(|event| event.data.u64()));
        Ok(n == MAX_EVENTS)
    }
}

/// Events a call.
const MAX_EVENTS: usize = 64;
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
