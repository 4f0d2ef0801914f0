//! Can a backend be reached, plainly and from an address that is not ours?

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::num::NonZeroU32;

use peername_proxy::reply_path::probe::foreign_addr;
use peername_proxy::routes::{BackendLocation, locate_backend};
use peername_sys::netlink::Netlink;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::backend::{Answer, LIMIT, connect_as};

/// What was found out about a TCP backend.
#[derive(Debug)]
pub(crate) struct Probe {
    /// Whether its address is this host's.
    pub(crate) is_here: bool,
    /// An ordinary connection.
    pub(crate) plainly: Reached,
    /// One from a documentation address, with the mark.
    pub(crate) as_a_stranger: Reached,
}

/// What came of a connection.
#[derive(Debug)]
pub(crate) enum Reached {
    Yes,
    /// An answer, too: it found its way.
    Refused,
    /// With the reason.
    No(String),
}

impl Probe {
    /// Connects twice.
    pub(crate) async fn of(target: SocketAddr, mark: Option<NonZeroU32>) -> Self {
        Self {
            is_here: is_here(target).await,
            plainly: plainly(target).await,
            as_a_stranger: as_a_stranger(target, mark).await,
        }
    }
}

async fn is_here(target: SocketAddr) -> bool {
    let Ok(netlink) = Netlink::open() else {
        return false;
    };
    let place = locate_backend(&netlink, target).await;
    matches!(
        place,
        Ok(BackendLocation::Loopback(_) | BackendLocation::ThisHost(_))
    )
}

async fn plainly(target: SocketAddr) -> Reached {
    match timeout(LIMIT, TcpStream::connect(target)).await {
        Ok(Ok(_)) => Reached::Yes,
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Reached::Refused,
        Ok(Err(error)) => Reached::No(error.to_string()),
        Err(_) => Reached::No(format!("no answer within {LIMIT:?}")),
    }
}

async fn as_a_stranger(target: SocketAddr, mark: Option<NonZeroU32>) -> Reached {
    match connect_as(foreign_addr(target.ip()), target, mark).await {
        Ok(Answer::Connected) => Reached::Yes,
        Ok(Answer::Refused) => Reached::Refused,
        Ok(Answer::Silence) => Reached::No(format!("no answer within {LIMIT:?}")),
        Ok(Answer::AsSomebodyElse(other)) => Reached::No(format!("it came from {other}")),
        Err(error) => Reached::No(error.to_string()),
    }
}
