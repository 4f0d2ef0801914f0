//! The queries about a socket, for the table.

use std::os::fd::BorrowedFd;

use peername_identity::SocketQueries;
use peername_sys::tcp::socket_info::{self, StreamProtocol};

/// A socket of the program, of which this process has a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramSocket<'fd>(pub(crate) BorrowedFd<'fd>);

impl SocketQueries for ProgramSocket<'_> {
    fn cookie(&self) -> Option<u64> {
        socket_info::cookie(self.0).ok()
    }

    fn inode(&self) -> Option<u64> {
        socket_info::inode(self.0).ok()
    }

    fn is_multipath(&self) -> bool {
        socket_info::protocol(self.0) == Some(StreamProtocol::Multipath)
    }
}
