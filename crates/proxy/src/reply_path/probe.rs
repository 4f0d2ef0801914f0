//! The self-test: do a backend's replies to a client's address come back to this host?
//!
//! When they do not, every connection hangs in its handshake, and the backend's SYN-ACKs leave for
//! people who asked for nothing. So it is tested before the first client is let in, and again while
//! the proxy runs: routes are the kind of thing that other programs flush.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use peername_sys::netlink::{self, Netlink};
use peername_sys::socket::BindOptions;
use peername_sys::socket::upstream;
use peername_sys::socket::upstream::UpstreamSocket;
use peername_sys::tcp::listener;
use peername_sys::tcp::stream;
use peername_sys::{NameCall, SyscallError};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::backend::Backend;
use crate::routes::{BackendLocation, add_command, locate_backend};
use peername_server::capabilities::Advice;

/// What was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// A connection from a foreign address was made, over the routes the backend's replies take.
    Connected,
    /// The routing tables keep the backend's replies on this host. Not tried with a packet: the
    /// backend's port is taken by the backend.
    LookedUp,
    /// The backend is on another host, whose routes can't be seen from here.
    NotHere,
    /// This host has no IPv6, so it has no such backend either.
    FamilyOff,
}

/// Why replies would not come back, and the command that mends it.
#[derive(Debug, thiserror::Error)]
pub enum ReplyPathError {
    /// This process may not take a foreign address.
    #[error(
        "{0}: connecting from a client's address needs CAP_NET_RAW or CAP_NET_ADMIN: {advice}",
        advice = Advice::for_this_process()
    )]
    Permission(SyscallError),
    /// Nothing was routed back: the handshake did not end.
    #[error(
        "no connection from {from} to {ip} within {}: replies to foreign addresses \
         leave this host; run {} as root, or start the proxy with `--setup-routes`",
        Milliseconds(LIMIT),
        add_command(*target),
        ip = target.ip()
    )]
    NoReply {
        /// The backend.
        target: SocketAddr,
        /// The documentation address that was tried.
        from: IpAddr,
    },
    /// The routing tables send the replies elsewhere.
    #[error(
        "what {target} sends to {to} leaves this host; run {} as root, or start the proxy with \
         `--setup-routes`",
        add_command(*target)
    )]
    NotRouted {
        /// The backend.
        target: Backend,
        /// The documentation address that was looked up.
        to: IpAddr,
    },
    /// The connection stood, but the listener saw another address: something between rewrites it.
    #[error(
        "connected to {target} from {from}, but {seen} was seen; look for a masquerading or SNAT \
         rule on the loopback interface: `nft list ruleset`, `iptables -t nat -S`"
    )]
    Rewritten {
        /// The backend.
        target: SocketAddr,
        /// The address we took.
        from: SocketAddr,
        /// The address that arrived.
        seen: SocketAddr,
    },
    /// A system call failed for a reason of its own.
    #[error(transparent)]
    Failed(#[from] SyscallError),
}

/// Tests the way back from `target`, a backend. Needs CAP_NET_RAW and a tokio runtime.
///
/// For a backend on loopback a connection is really made (a TCP one also for UDP, which the same rule
/// takes), from [`stranger`] to a listener of our own
/// beside the backend. For one on another address of this host the routing tables are asked. The
/// backend itself is not touched.
pub async fn check(backend: impl Into<Backend>) -> Result<ProbeOutcome, ReplyPathError> {
    check_marked(backend, None).await
}

/// The same with the firewall mark that connections to the backend have: rules may route by it, and
/// connection tracking may give it to the replies.
pub async fn check_marked(
    backend: impl Into<Backend>,
    mark: Option<NonZeroU32>,
) -> Result<ProbeOutcome, ReplyPathError> {
    check_with(&Netlink::open()?, backend.into(), mark).await
}

/// The same by a socket that is there already.
pub(crate) async fn check_with(
    netlink: &Netlink,
    backend: Backend,
    mark: Option<NonZeroU32>,
) -> Result<ProbeOutcome, ReplyPathError> {
    let target = backend.address;
    match locate_backend(netlink, target).await? {
        BackendLocation::Loopback(ip) => match connect_beside(target, ip, mark).await {
            Err(ReplyPathError::Failed(error)) if ip.is_ipv6() && is_without_ipv6(&error) => {
                Ok(ProbeOutcome::FamilyOff)
            }
            outcome => outcome,
        },
        BackendLocation::ThisHost(address) => {
            look_up(netlink, Backend { address, ..backend }, mark).await
        }
        BackendLocation::OtherHost => Ok(ProbeOutcome::NotHere),
    }
}

/// An address that no client has, of the same family: 192.0.2.1 from TEST-NET-1 (RFC 5737), or
/// 2001:db8::1 from the documentation prefix (RFC 3849).
pub fn foreign_addr(beside: IpAddr) -> IpAddr {
    match beside {
        IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    }
}

async fn connect_beside(
    target: SocketAddr,
    ip: IpAddr,
    mark: Option<NonZeroU32>,
) -> Result<ProbeOutcome, ReplyPathError> {
    let listener = listener::listen(SocketAddr::new(ip, 0), BindOptions::default())?;
    let address = upstream::local_addr(&listener)?;
    let listener = TcpListener::from_std(listener).call("epoll_ctl(2)")?;

    let stranger = foreign_addr(ip);
    let connection = connect_from(stranger, address, mark)?;
    let from = upstream::local_addr(&connection)?;
    let seen = timeout(LIMIT, accept(&listener, from.port()))
        .await
        .map_err(|_| ReplyPathError::NoReply {
            target,
            from: stranger,
        })??;
    if seen.ip() == stranger {
        Ok(ProbeOutcome::Connected)
    } else {
        Err(ReplyPathError::Rewritten {
            target,
            from: SocketAddr::new(stranger, from.port()),
            seen,
        })
    }
}

fn connect_from(
    stranger: IpAddr,
    to: SocketAddr,
    mark: Option<NonZeroU32>,
) -> Result<std::net::TcpStream, ReplyPathError> {
    let socket = UpstreamSocket::new_tcp(to)?;
    if let Some(mark) = mark {
        socket.set_mark(mark.get())?;
    }
    socket.set_transparent().map_err(|error| {
        if error.is_permission() {
            ReplyPathError::Permission(error)
        } else {
            ReplyPathError::Failed(error)
        }
    })?;
    socket.bind_any_port(stranger)?;
    let connection = socket.connect(to)?;
    // Nothing was said on it, so it need not linger in TIME_WAIT.
    stream::reset_on_close(&connection).call("setsockopt(SO_LINGER)")?;
    Ok(connection)
}

/// The peer of the connection that was made from `port`. Another may come first: anybody may connect
/// to a port of loopback.
async fn accept(listener: &TcpListener, port: u16) -> Result<SocketAddr, SyscallError> {
    loop {
        let (_, peer) = listener.accept().await.call("accept4(2)")?;
        if peer.port() == port {
            return Ok(peer);
        }
    }
}

async fn look_up(
    netlink: &Netlink,
    target: Backend,
    mark: Option<NonZeroU32>,
) -> Result<ProbeOutcome, ReplyPathError> {
    let Backend { address, transport } = target;
    let to = foreign_addr(address.ip());
    if netlink
        .is_delivered_locally(transport, address, to, mark)
        .await?
    {
        Ok(ProbeOutcome::LookedUp)
    } else {
        Err(ReplyPathError::NotRouted { target, to })
    }
}

/// No IPv6 at all, or no `::1` to bind to.
fn is_without_ipv6(error: &SyscallError) -> bool {
    netlink::is_family_disabled(error) || error.is_address_unavailable()
}

struct Milliseconds(Duration);

impl std::fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ms", self.0.as_millis())
    }
}

/// How long a handshake over loopback may take. It takes well under a millisecond; the rest is for a
/// machine that is busy starting everything at once.
const LIMIT: Duration = Duration::from_millis(500);
