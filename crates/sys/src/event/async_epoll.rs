//! An epoll instance nested in the runtime's: thousands of sockets behind one descriptor.
//!
//! An epoll instance is itself a descriptor that can be waited for. So a worker adds all its sockets to one instance,
//! and the runtime watches only that.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use super::readiness::register_readable;
use crate::{NameCall, Result};

/// An epoll instance (epoll(7)) that is registered with the tokio runtime. Level-triggered: a socket that is not
/// drained is reported again.
#[derive(Debug)]
pub struct AsyncEpoll(AsyncFd<OwnedFd>);

impl AsyncEpoll {
    /// Opens an empty instance and registers it with the current tokio runtime.
    ///
    /// # Errors
    ///
    /// EMFILE, ENFILE, ENOMEM, or ENOSPC (`fs.epoll.max_user_watches`).
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).call("epoll_create1(2)")?;
        Ok(Self(register_readable(epoll)?))
    }

    /// Waits until a socket may be ready. Once all are drained, call [`AsyncFdReadyGuard::clear_ready`] of the guard;
    /// without that, the next call returns at once. Cancel-safe.
    ///
    /// # Errors
    ///
    /// Only while the runtime shuts down.
    pub async fn readable(&self) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
        self.0.readable().await
    }

    /// Adds a socket: `token` is reported when it is readable or has an error. Closing the socket removes it.
    pub fn add(&self, socket: impl AsFd, token: u64) -> Result<()> {
        epoll::add(
            self.0.get_ref(),
            socket,
            EventData::new_u64(token),
            EventFlags::IN,
        )
        .call("epoll_ctl(EPOLL_CTL_ADD)")
    }

    /// Removes a socket: needed where another descriptor of it stays open.
    pub fn delete(&self, socket: impl AsFd) -> Result<()> {
        epoll::delete(self.0.get_ref(), socket).call("epoll_ctl(EPOLL_CTL_DEL)")
    }

    /// Appends the tokens of sockets that are ready now to `ready`, without waiting; returns whether there may be
    /// more.
    ///
    /// # Errors
    ///
    /// EINTR after a signal.
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

/// Events per call of epoll_wait(2).
const MAX_EVENTS: usize = 64;
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
