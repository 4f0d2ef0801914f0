//! The listening socket of the admin endpoint.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use peername_sys::ipc::unix_socket_file::{SocketPath, UnixSocketFile};

use super::address::AdminAddr;

/// A listening socket from which nothing is accepted yet.
#[derive(Debug)]
pub enum AdminListener {
    /// Non-blocking.
    Tcp(TcpListener),
    /// Removed from the file system when it is dropped.
    Unix(UnixSocketFile),
}

/// A handle of a listener that is served, to hand it over to another process.
#[derive(Debug)]
pub struct AdminHandle {
    socket: OwnedFd,
    path: Option<Arc<SocketPath>>,
}

impl AdminListener {
    /// Adopts the listener of another process on this address. Once the listener is served, this process owns the path.
    pub fn adopt(addr: AdminAddr, socket: OwnedFd) -> Self {
        match addr {
            AdminAddr::Tcp(_) => Self::Tcp(socket.into()),
            AdminAddr::Unix(path) => Self::Unix(UnixSocketFile::adopt(path, socket)),
        }
    }

    /// A handle by which the listener can be handed over while it is served.
    pub fn handle(&self) -> io::Result<AdminHandle> {
        let path = match self {
            Self::Tcp(_) => None,
            Self::Unix(file) => Some(Arc::clone(file.path())),
        };
        Ok(AdminHandle {
            socket: self.as_fd().try_clone_to_owned()?,
            path,
        })
    }

    /// Makes this process the one that removes the path.
    pub(super) fn take_path_ownership(&self) {
        if let Self::Unix(file) = self {
            file.path().take_ownership();
        }
    }
}

impl AsFd for AdminListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(file) => file.as_fd(),
        }
    }
}

impl AdminHandle {
    /// A duplicate of the socket, for the other process.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Leaves it to the other process to remove the path.
    pub fn give_up_path_ownership(&self) {
        if let Some(path) = &self.path {
            path.give_up_ownership();
        }
    }

    /// Removes the path, unless it was left to another process.
    pub fn remove_path(&self) {
        if let Some(path) = &self.path {
            path.remove();
        }
    }
}
