//! The store in which the agent keeps descriptors, so that they outlive the agent.
//!
//! A container's filter outlives the agent. If no process had the filter's listener open, every accept(2) of the container
//! would fail, for ever; as long as some process has it open, the calls wait for the next agent.

use std::fmt::{self, Debug, Display, Formatter};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::str::FromStr;

/// A store of descriptors with unique names.
pub trait DescriptorStore: Debug {
    /// Stores a duplicate of this descriptor.
    ///
    /// # Errors
    ///
    /// The store is full, or has ended.
    fn put(&mut self, name: StoredName, fd: BorrowedFd<'_>) -> io::Result<()>;

    /// Closes the stored descriptor of this name.
    fn remove(&mut self, name: StoredName);

    /// A descriptor that is readable when there is an event; `None` if this store has no events.
    fn events(&self) -> Option<BorrowedFd<'_>>;

    /// Reads the event for which the descriptor is readable.
    fn next_event(&mut self) -> StoreEvent;
}

/// An event of a store.
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
    /// The name.
    pub name: StoredName,
    /// The descriptor.
    pub fd: OwnedFd,
}

/// The name of a descriptor in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoredName {
    /// The agent's listening socket.
    Socket,
    /// A part of a container's state.
    Container {
        /// The container's number, which the agent has given it.
        number: u64,
        /// The part.
        part: ContainerPart,
    },
}

/// A part of a container's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerPart {
    /// The container's id and the name of its policy.
    State,
    /// The table of clients.
    Table,
    /// The record of in-flight calls.
    Inflight,
    /// The seccomp listener.
    Calls,
}

impl ContainerPart {
    /// All parts in the order in which they are stored: the listener last, so that a container with a listener has the others.
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

/// Formats the name for a service manager (sd_pid_notify_with_fds(3), FDNAME).
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
        let number = number.parse().map_err(|_| ())?;
        let mut parts = ContainerPart::ALL.into_iter();
        let part = parts.find(|known| known.name() == part).ok_or(())?;
        Ok(Self::Container { number, part })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_formatting_and_parsing() {
        let parts = ContainerPart::ALL.map(|part| StoredName::Container { number: 7, part });
        for name in parts.into_iter().chain([StoredName::Socket]) {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        for name in ["", "7", "7-", "x-table", "7-other", "listen"] {
            assert_eq!(name.parse::<StoredName>(), Err(()), "{name}");
        }
    }
}
