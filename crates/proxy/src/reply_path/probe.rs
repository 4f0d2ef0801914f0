//! Probes a reply path: whether a backend's replies to a foreign address come back to this host. [`monitor`](super::monitor) has
//! the reason.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use peername_server::capabilities::Advice;
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
use crate::nat_probe::{LIST_RULES, TranslatedAddresses, fresh_source, probe_egress};
use crate::routes::{BackendLocation, add_advice, has_rule, locate_backend};

/// The finding of a successful probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// A connection from a foreign address was established, over the routes that the backend's replies take.
    Connected,
    /// By the routing tables, the backend's replies stay on this host. No packet was sent: the rules are limited to the
    /// backend's port, which the backend itself listens on.
    RouteFound,
    /// The backend is on another host, and this host can't read the routes there.
    OtherHost,
    /// This host has no IPv6, so it has no IPv6 backend either.
    NoIpv6,
}

/// The reason why replies would not come back, with the command that makes them come back.
#[derive(Debug, thiserror::Error)]
pub enum ReplyPathError {
    /// This process lacks the capability to bind to a foreign address.
    #[error(
        "{0}: connecting from a client's address needs CAP_NET_RAW or CAP_NET_ADMIN: {advice}",
        advice = Advice::for_this_process()
    )]
    Permission(SyscallError),
    /// The handshake timed out: the reply was not routed back.
    #[error(
        "no connection from {from} to {ip} within {} ms: replies to foreign addresses \
         leave this host; run {}, or let the proxy do it with `--setup-routes`",
        HANDSHAKE_TIMEOUT.as_millis(),
        add_advice(*target, None),
        ip = target.address.ip()
    )]
    NoReply {
        /// The backend.
        target: Backend,
        /// The documentation address that was the source.
        from: IpAddr,
    },
    /// The routing tables send the replies to another host.
    #[error(
        "what {target} sends to {to} leaves this host; run {}, or let the proxy do it with \
         `--setup-routes`",
        add_advice(*target, None)
    )]
    NotRouted {
        /// The backend.
        target: Backend,
        /// The documentation address that was looked up.
        to: IpAddr,
    },
    /// Replies leave this host although peername has a rule for the backend.
    #[error(
        "what {target} sends to clients leaves this host, although there is a rule for it: either a rule with a smaller \
         priority takes these packets (`ip rule show`), or the table is empty (`peername routes show`)"
    )]
    Overridden {
        /// The backend.
        target: Backend,
    },
    /// Replies were recognized by the mark at an earlier probe, and are not any more.
    #[error(
        "replies of {target} are not recognized by mark {mark} any more: another program has removed the table \
         `peername_mark_{mark}` (`nft flush ruleset`) or its rule; run {}, or let the proxy do it with `--setup-routes`",
        add_advice(*target, Some(*mark))
    )]
    MarkLost {
        /// The backend.
        target: Backend,
        /// The mark.
        mark: NonZeroU32,
    },
    /// NAT rules replace the source on the way to the backend.
    #[error(
        "{target} would see {seen} instead of {from}: exempt connections to it from the rule that masquerades them \
         ({LIST_RULES})"
    )]
    Rewritten {
        /// The backend.
        target: SocketAddr,
        /// The address that the probe was sent from.
        from: SocketAddr,
        /// The address that the listener saw.
        seen: SocketAddr,
    },
    /// A system call failed for another reason.
    #[error(transparent)]
    Syscall(#[from] SyscallError),
}

impl ReplyPathError {
    /// Whether the error means that a rule, a route or a table is missing.
    pub fn is_missing_rule(&self) -> bool {
        matches!(
            self,
            Self::NoReply { .. } | Self::NotRouted { .. } | Self::MarkLost { .. }
        )
    }
}

/// Probes the reply path of a backend. Needs CAP_NET_RAW and a tokio runtime.
///
/// The routing tables are looked up for replies of the backend. Nothing is sent to the backend itself. For a backend on
/// loopback whose rules are not limited to its port, a TCP connection is made as well, from [`foreign_addr`] to a listener
/// of our own on the backend's address.
///
/// # Errors
///
/// [`ReplyPathError`]: replies would not come back, or a system call failed and the result is unknown.
pub async fn probe(backend: impl Into<Backend>) -> Result<ProbeOutcome, ReplyPathError> {
    probe_with(&Netlink::open()?, backend.into(), None).await
}

/// As [`probe`], with a netlink socket that is already open, and the firewall mark that connections to the backend have: rules may
/// route by it, and connection tracking may copy it to the replies.
pub(crate) async fn probe_with(
    netlink: &Netlink,
    backend: Backend,
    mark: Option<NonZeroU32>,
) -> Result<ProbeOutcome, ReplyPathError> {
    match locate_backend(netlink, backend.address).await? {
        BackendLocation::Loopback(ip) => {
            let address = SocketAddr::new(ip, backend.address.port());
            let backend = Backend { address, ..backend };
            let outcome = match probe_loopback(netlink, backend, mark).await {
                Err(ReplyPathError::Syscall(error)) if ip.is_ipv6() && is_ipv6_missing(&error) => {
                    Ok(ProbeOutcome::NoIpv6)
                }
                outcome => outcome,
            };
            detect_overridden_rule(netlink, backend, outcome).await
        }
        BackendLocation::ThisHost(address) => {
            let backend = Backend { address, ..backend };
            let outcome = look_up_route(netlink, backend, mark).await;
            detect_overridden_rule(netlink, backend, outcome).await
        }
        BackendLocation::OtherHost => match mark {
            Some(_) => verify_egress(backend, mark),
            None => Ok(ProbeOutcome::OtherHost),
        },
    }
}

/// Verifies that NAT rules keep a foreign address on the way to a backend on another host. Succeeds where the device can't
/// tell; where a packet filter drops the probe, the error is [`ReplyPathError::Syscall`].
fn verify_egress(
    target: Backend,
    mark: Option<NonZeroU32>,
) -> Result<ProbeOutcome, ReplyPathError> {
    let from = fresh_source(foreign_addr(target.address.ip()))?;
    match probe_egress(target, mark, from) {
        Ok(Some(TranslatedAddresses { source: seen, .. })) if seen.ip() != from.ip() => {
            Err(ReplyPathError::Rewritten {
                target: target.address,
                from,
                seen,
            })
        }
        Ok(_) => Ok(ProbeOutcome::OtherHost),
        Err(error) => Err(error.into()),
    }
}

/// Replaces an error about a missing rule by [`ReplyPathError::Overridden`] where there is a rule.
async fn detect_overridden_rule(
    netlink: &Netlink,
    target: Backend,
    outcome: Result<ProbeOutcome, ReplyPathError>,
) -> Result<ProbeOutcome, ReplyPathError> {
    match outcome {
        Err(broken) if broken.is_missing_rule() && has_rule(netlink, target).await? => {
            Err(ReplyPathError::Overridden { target })
        }
        outcome => outcome,
    }
}

/// A foreign address of the same family that no client has: 192.0.2.1 from TEST-NET-1 (RFC 5737), or
/// 2001:db8::1 from the documentation prefix (RFC 3849).
pub fn foreign_addr(same_family: IpAddr) -> IpAddr {
    match same_family {
        IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    }
}

/// Connects to a listener of our own. Where the backend's rules are limited to its port, only looks up the route.
async fn probe_loopback(
    netlink: &Netlink,
    target: Backend,
    mark: Option<NonZeroU32>,
) -> Result<ProbeOutcome, ReplyPathError> {
    let ip = target.address.ip();
    let listener = listener::listen(SocketAddr::new(ip, 0), BindOptions::default())?;
    let address = upstream::local_addr(&listener)?;
    // A rule for the backend's port alone does not apply to the listener.
    if look_up_route(netlink, address.into(), None).await.is_err()
        && let Ok(found) = look_up_route(netlink, target, None).await
    {
        return Ok(found);
    }
    let listener = TcpListener::from_std(listener).call("epoll_ctl(2)")?;
    connect_to_own_listener(&listener, address, target, mark).await
}

async fn connect_to_own_listener(
    listener: &TcpListener,
    address: SocketAddr,
    target: Backend,
    mark: Option<NonZeroU32>,
) -> Result<ProbeOutcome, ReplyPathError> {
    let ip = address.ip();
    let foreign = foreign_addr(ip);
    let connection = connect_from(foreign, address, mark)?;
    let from = upstream::local_addr(&connection)?;
    let seen = timeout(HANDSHAKE_TIMEOUT, accept_from_port(listener, from.port()))
        .await
        .map_err(|_| ReplyPathError::NoReply {
            target,
            from: foreign,
        })??;
    if seen.ip() == foreign {
        Ok(ProbeOutcome::Connected)
    } else {
        Err(ReplyPathError::Rewritten {
            target: target.address,
            from: SocketAddr::new(foreign, from.port()),
            seen,
        })
    }
}

fn connect_from(
    foreign: IpAddr,
    to: SocketAddr,
    mark: Option<NonZeroU32>,
) -> Result<std::net::TcpStream, ReplyPathError> {
    let socket = UpstreamSocket::new_tcp(to)?;
    socket.set_mark(mark)?;
    socket.set_transparent().map_err(|error| {
        if error.is_permission() {
            ReplyPathError::Permission(error)
        } else {
            ReplyPathError::Syscall(error)
        }
    })?;
    socket.bind_any_port(foreign)?;
    let connection = socket.connect(to)?;
    // No data is sent on the connection, so it need not stay in TIME_WAIT.
    stream::reset_on_close(&connection).call("setsockopt(SO_LINGER)")?;
    Ok(connection)
}

/// Accepts the connection that was made from `port`, and returns its peer. Others are skipped: any local process may
/// connect to a port on loopback.
async fn accept_from_port(listener: &TcpListener, port: u16) -> Result<SocketAddr, SyscallError> {
    loop {
        let (_, peer) = listener.accept().await.call("accept4(2)")?;
        if peer.port() == port {
            return Ok(peer);
        }
    }
}

async fn look_up_route(
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
        Ok(ProbeOutcome::RouteFound)
    } else {
        Err(ReplyPathError::NotRouted { target, to })
    }
}

/// Whether the error means that this host has no IPv6, or no `::1` to bind to.
fn is_ipv6_missing(error: &SyscallError) -> bool {
    netlink::is_family_disabled(error) || error.is_address_unavailable()
}

/// Timeout of a handshake over loopback, which takes well under a millisecond; the rest is for a host that is busy while it
/// boots.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(500);
