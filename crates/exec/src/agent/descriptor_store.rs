//! Where the agent keeps descriptors, so that they outlive it.
//!
//! A container's filter outlives the agent. Without a listener its every accept(2) would fail, for ever; as long as some process
//! has the listener open, the calls wait for the next agent.

use std::fmt::{self, Debug, Display, Formatter};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::str::FromStr;

/// A store of descriptors with unique names.
pub trait DescriptorStore: Debug {
    /// Keeps a duplicate of this descriptor.
    ///
    /// # Errors
    ///
    /// The store is full, or has ended.
    fn put(&mut self, name: StoredName, fd: BorrowedFd<'_>) -> io::Result<()>;

    /// Closes a descriptor.
    fn remove(&mut self, name: StoredName);

    /// A descriptor that is readable when there is an event; `None` if there never is one.
    fn events(&self) -> Option<BorrowedFd<'_>>;

    /// The event for which the store was readable.
    fn next_event(&mut self) -> StoreEvent;
}

/// What has happened to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// Another agent takes over, once this one has exited.
    TakenOver,
    /// The store has ended, and has closed the descriptors.
    Ended,
}

/// A descriptor that was in the store when the agent started.
#[derive(Debug)]
pub struct StoredDescriptor {
    /// What it is.
    pub name: StoredName,
    /// The descriptor.
    pub fd: OwnedFd,
}

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoredName {
    /// The agent's listening socket.
    Socket,
    /// Part of what a container needs; the agent counts its containers.
    Container {
        /// The container's number.
        number: u64,
        /// Which part.
        part: Part,
    },
}

/// What a container needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Its id and the name of its policy.
    State,
    /// The table of clients.
    Table,
    /// The record of in-flight calls.
    Inflight,
    /// The seccomp listener.
    Calls,
}

impl Part {
    /// In the order in which they are stored: a container with a listener has the others.
    pub(super) const ALL: [Self; 4] = [Self::State, Self::Table, Self::Inflight, Self::Calls];

    fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Table => "table",
            Self::Inflight => "inflight",
            Self::Calls => "calls",
        }
    }
}

/// A name for a service manager (sd_pid_notify_with_fds(3), FDNAME).
impl Display for StoredName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket => f.write_str("socket"),
            Self::Container { number, part } => write!(f, "{number}-{}", part.name()),
        }
    }
}

impl FromStr for StoredName {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        if name == "socket" {
            return Ok(Self::Socket);
        }
        let (number, part) = name.split_once('-').ok_or(())?;
        let part = Part::ALL.into_iter().find(|one| one.name() == part);
        Ok(Self::Container {
            number: number.parse().map_err(|_| ())?,
            part: part.ok_or(())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let parts = Part::ALL.map(|part| StoredName::Container { number: 7, part });
        for name in parts.into_iter().chain([StoredName::Socket]) {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        for name in ["", "7", "7-", "x-table", "7-other", "listen"] {
            assert_eq!(name.parse::<StoredName>(), Err(()), "{name}");
        }
    }
}
