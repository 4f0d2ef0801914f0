//! The program's sockets: the properties that make a key, and for sweeps the list of open sockets, by sock_diag(7), or else by
//! /proc/net/tcp.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::{fs, io};

use peername_identity::{SocketKey, SocketListing, SocketQueries, connected_inode};
use peername_sys::netlink::sock_diag::connected_sockets;
use peername_sys::tcp::socket_info::{self, StreamProtocol};
use peername_sys::{NameCall, Result};

/// Finds out how sockets can be listed in the calling thread's network namespace.
pub(crate) fn find_listing() -> Result<SocketListing> {
    if let Err(error) = connected_sockets(StreamProtocol::Tcp) {
        return match proc_inodes() {
            Ok(_) => Ok(SocketListing::Proc),
            Err(_) => Err(error),
        };
    }
    Ok(match connected_sockets(StreamProtocol::Multipath) {
        Ok(_) => SocketListing::Diag,
        Err(_) => SocketListing::DiagWithoutMultipath,
    })
}

/// The keys of all connected TCP sockets of the network namespace, whichever process has them open. A socket may be missing if
/// another one is closed meanwhile.
pub(crate) fn open_keys(listing: SocketListing) -> Result<HashSet<SocketKey>> {
    if listing == SocketListing::Proc {
        let inodes = proc_inodes()?;
        return Ok(inodes
            .into_iter()
            .filter_map(SocketKey::from_inode)
            .collect());
    }
    let mut sockets = connected_sockets(StreamProtocol::Tcp)?;
    if listing == SocketListing::Diag {
        sockets.extend(connected_sockets(StreamProtocol::Multipath)?);
    }
    let keys = sockets.iter().flat_map(|socket| {
        [
            SocketKey::from_cookie(socket.cookie),
            SocketKey::from_inode(socket.inode),
        ]
    });
    Ok(keys.flatten().collect())
}

/// The inode numbers of connected TCP sockets, of /proc/net/tcp and, where there is IPv6, of /proc/net/tcp6.
fn proc_inodes() -> Result<Vec<u64>> {
    let mut lists =
        fs::read("/proc/thread-self/net/tcp").call("open(/proc/thread-self/net/tcp)")?;
    match fs::read("/proc/thread-self/net/tcp6") {
        Ok(list) => lists.extend(list),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).call("open(/proc/thread-self/net/tcp6)"),
    }
    Ok(lists
        .split(|&byte| byte == b'\n')
        .filter_map(connected_inode)
        .collect())
}

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
