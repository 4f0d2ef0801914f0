//! The state of a container's supervisor, in memory that outlives it: the table of clients, and the record of in-flight calls.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use peername_identity::Table;
use peername_sys::ipc::shared_memory::{create_anonymous, map_words};
use peername_sys::{NameCall, Result};

use crate::notify::InflightCalls;

/// The memory of a container.
#[derive(Debug)]
pub(super) struct ContainerMemory {
    pub(super) table: OwnedFd,
    pub(super) inflight: OwnedFd,
}

impl ContainerMemory {
    /// Creates empty memory for `slots` connections: a power of two, and at least 64.
    pub(super) fn new(slots: usize) -> Result<Self> {
        Ok(Self {
            table: create_anonymous("peername-table", Table::size(slots))?,
            inflight: InflightCalls::create_memory()?,
        })
    }
}

/// Maps a table whose settings the caller will write.
///
/// # Errors
///
/// An error of mmap(2), or the memory is no table of this version.
pub(super) fn map_table(memory: OwnedFd) -> Result<Table<'static>> {
    let memory = File::from(memory);
    let size = memory.metadata().call("fstat(2)")?.len();
    let words = map_words(&memory, usize::try_from(size).unwrap_or(usize::MAX))?;
    Table::adopt(words)
        .ok_or_else(|| io::Error::other("it is of another version of peername"))
        .call("opening the table of clients")
}
