//! Probes whether a backend can be reached, from an own address and from a spoofed one.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::num::NonZeroU32;

use peername_proxy::reply_path::probe::foreign_addr;
use peername_proxy::routes::{BackendLocation, locate_backend};
use peername_sys::SyscallError;
use peername_sys::netlink::Netlink;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::cmd::doctor::backend::{CONNECT_TIMEOUT, ConnectOutcome, connect_as};

/// The result of probing a TCP backend.
#[derive(Debug)]
pub(super) struct BackendProbe {
    /// Whether the backend's address is this host's.
    pub(super) is_here: Result<bool, SyscallError>,
    /// The result of an ordinary connection.
    pub(super) from_own_address: Reachability,
    /// The result of a connection from a documentation address, with the firewall mark.
    pub(super) from_spoofed_source: Reachability,
}

/// The result of a connection attempt.
#[derive(Debug)]
pub(super) enum Reachability {
    Yes,
    /// The backend answered with a refusal, so its packets come back.
    Refused,
    /// With the reason.
    No(String),
}

impl BackendProbe {
    /// Connects from an own address, then from a spoofed one.
    pub(super) async fn of(target: SocketAddr, mark: Option<NonZeroU32>) -> Self {
        Self {
            is_here: is_here(target).await,
            from_own_address: from_own_address(target).await,
            from_spoofed_source: from_spoofed_source(target, mark).await,
        }
    }
}

async fn is_here(target: SocketAddr) -> Result<bool, SyscallError> {
    Ok(match locate_backend(&Netlink::open()?, target).await? {
        BackendLocation::Loopback(_) | BackendLocation::ThisHost(_) => true,
        BackendLocation::OtherHost => false,
    })
}

async fn from_own_address(target: SocketAddr) -> Reachability {
    match timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await {
        Ok(Ok(_)) => Reachability::Yes,
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Reachability::Refused,
        Ok(Err(error)) => Reachability::No(error.to_string()),
        Err(_) => Reachability::No(format!("no answer within {CONNECT_TIMEOUT:?}")),
    }
}

async fn from_spoofed_source(target: SocketAddr, mark: Option<NonZeroU32>) -> Reachability {
    match connect_as(foreign_addr(target.ip()), target, mark).await {
        Ok(ConnectOutcome::Connected) => Reachability::Yes,
        Ok(ConnectOutcome::Refused) => Reachability::Refused,
        Ok(ConnectOutcome::Silence) => {
            Reachability::No(format!("no answer within {CONNECT_TIMEOUT:?}"))
        }
        Err(error) => Reachability::No(error.to_string()),
    }
}
