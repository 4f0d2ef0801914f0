//! What a program needs beside the supervisor once a process of it depends on the supervisor: somebody who ends it if
//! the supervisor is killed.

use peername_sys::Result;
use peername_sys::event::epoll::Epoll;

use super::acceptors::Acceptors;
use super::guardian::{Guardian, Ward};
use super::ledger::Open;

/// The guardian, and the processes that the kernel ends with both.
#[derive(Debug)]
pub(super) struct Monitor {
    guardian: Guardian,
    acceptors: Acceptors,
}

impl Monitor {
    /// Starts the guardian, for whose end the supervisor waits at `epoll`.
    ///
    /// # Errors
    ///
    /// Those of fork(2), epoll_ctl(2) and what the two are made of.
    pub(super) fn start(ward: &Ward, epoll: &Epoll) -> Result<Self> {
        let mut acceptors = Acceptors::new(ward)?;
        let guardian = Guardian::start(ward, acceptors.hold(ward)?, epoll)?;
        Ok(Self {
            guardian,
            acceptors,
        })
    }

    /// Starts another guardian, as the one before has ended.
    ///
    /// # Errors
    ///
    /// As [`Monitor::start`].
    pub(super) fn replace_guardian(&mut self, ward: &Ward, epoll: &Epoll) -> Result<()> {
        let hold = self.acceptors.hold(ward)?;
        self.guardian.replace(ward, hold, epoll)
    }

    /// Takes note of a process that accepts by the supervisor.
    pub(super) fn note(&mut self, ward: &Ward, call: Open) {
        self.acceptors.note(ward, call);
    }
}
