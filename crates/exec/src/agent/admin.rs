//! The agent's side of its admin endpoint, which a process beside the agent serves ([`crate::admin`]). The agent stores in
//! shared memory the sum of the counters of all containers, including those that have ended.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use peername_identity::{Counts, Gauge, Table};
use peername_sys::ipc::shared_memory::{create_anonymous, map_words};
use peername_sys::{NameCall, Result};

use super::container::Container;
use crate::admin::LivenessSocket;

/// Creates the memory of the sum: a table without entries.
pub fn create_totals() -> Result<Table<'static>> {
    let size = Table::size(MIN_SLOTS);
    let words = map_words(create_anonymous("peername-totals", size)?, size)?;
    let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
    Table::new(words).ok_or_else(invalid).call("mmap(2)")
}

/// The agent's end of its admin endpoint.
#[derive(Debug)]
pub(super) struct AgentAdmin {
    socket: LivenessSocket,
    totals: Table<'static>,
    /// The counters of containers that have ended.
    ended: Counts,
    /// When the sum is stored next.
    pub(super) due: Instant,
}

impl AgentAdmin {
    /// `socket` is the agent's end of the liveness socket.
    pub(super) fn new(socket: OwnedFd, totals: Table<'static>) -> Result<Self> {
        Ok(Self {
            socket: LivenessSocket::new(socket).call("ioctl(FIONBIO)")?,
            totals,
            ended: Counts::NONE,
            due: Instant::now(),
        })
    }

    /// Answers a request; `None` if the process of the endpoint has exited.
    pub(super) fn answer_or_close(self) -> Option<Self> {
        let socket = self.socket.answer_or_close()?;
        Some(Self { socket, ..self })
    }

    /// Reports a reload of the policies to the process of the endpoint.
    pub(super) fn report_reload(&mut self, is_applied: bool) {
        self.socket.report_reload(is_applied);
    }

    /// Adds the counters of a container that has ended.
    pub(super) fn add_ended(&mut self, container: &Container) {
        if let Ok(counts) = container.counts() {
            self.ended.add_counters(&counts);
        }
    }

    /// Stores the sum, if it is due.
    pub(super) fn store(&mut self, now: Instant, containers: &HashMap<u64, Container>) {
        if self.due > now {
            return;
        }
        self.due = now + INTERVAL;
        let mut sum = self.ended;
        for container in containers.values() {
            if let Ok(counts) = container.counts() {
                sum.add_counters(&counts);
                sum.add_gauges(&counts);
            }
        }
        let settings = self.totals.settings();
        settings.store_counts(&sum);
        settings.set_gauge(Gauge::Containers, containers.len() as u64);
    }
}

impl AsFd for AgentAdmin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The maximum age of the sum.
const INTERVAL: Duration = Duration::from_secs(1);
/// The minimum size of a table: this one has no entries.
const MIN_SLOTS: usize = 64;
