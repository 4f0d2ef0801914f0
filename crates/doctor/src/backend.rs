//! Checks of one backend and its reply path.

mod connect_probe;

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use peername_proxy::reply_path::probe::{self, ProbeOutcome, foreign_addr};
use peername_proxy::routes::{self, Backend, BackendLocation, EntryOwner, locate_backend};
use peername_sys::SyscallError;
use peername_sys::netlink::Netlink;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::finding::Finding;
use connect_probe::{CONNECT_TIMEOUT, ConnectOutcome, connect_as};

/// Finds rules of a proxy that was killed together with its route keeper.
pub async fn leftovers() -> Finding {
    let is_left = |entry: &routes::RoutingEntry| entry.owner == EntryOwner::ExitedProxy;
    match routes::list().await {
        Ok(found) if found.iter().any(is_left) => Finding::warn(
            "leftovers",
            "rules and routes of a proxy that has exited",
            "`peername routes remove`",
        ),
        Ok(_) => Finding::ok("leftovers", "none"),
        Err(error) => Finding::broken("leftovers", error.to_string()),
    }
}

/// Whether this is an IPv6 backend on a loopback interface without IPv6, so that there is nothing to check.
pub async fn lacks_family(target: SocketAddr) -> bool {
    let Ok(netlink) = Netlink::open() else {
        return false;
    };
    match locate_backend(&netlink, target).await {
        Ok(BackendLocation::Loopback(ip)) => {
            matches!(netlink.is_local_address(ip).await, Ok(false))
        }
        _ => false,
    }
}

/// Checks that the routing tables deliver the backend's replies to this host.
pub async fn check_routes(target: Backend, mark: u32) -> Finding {
    let check = "routes";
    match reply_route(target).await {
        Ok(ReplyRoute::Stays) => {
            Finding::ok(check, format!("replies of {target} stay on this host"))
        }
        Ok(ReplyRoute::Leaves) => Finding::fail(
            check,
            format!("replies of {target} to clients leave this host"),
            format!(
                "{}, or start the proxy with `--setup-routes`",
                routes::add_advice(target, None)
            ),
        ),
        Ok(ReplyRoute::Unknown) if NonZeroU32::new(mark).is_some_and(has_reply_table) => {
            Finding::ok(
                check,
                format!(
                    "{target} is on another host; its replies to clients are delivered here by mark {mark}"
                ),
            )
        }
        Ok(ReplyRoute::Unknown) => Finding::warn(
            check,
            format!("{target} is on another host"),
            format!(
                "that host must route replies to this one, which must deliver them to the proxy: {} as root, and the proxy with the \
                 same `--mark`",
                routes::add_command(target, NonZeroU32::new(mark).or(EXAMPLE_MARK)),
            ),
        ),
        Err(error) => Finding::broken(check, format!("{target}: {error}")),
    }
}

/// Reports that the rules for the backend's replies are missing and that the start adds them (`setup-routes`); `None` if the
/// replies stay on this host already, if the backend is on another one, or if the lookup fails.
pub async fn missing_rules(target: Backend) -> Option<Finding> {
    match reply_route(target).await {
        Ok(ReplyRoute::Leaves) => Some(Finding::ok(
            "routes",
            format!(
                "the start adds the rules for replies of {target} (setup-routes); checks that need these rules are left out"
            ),
        )),
        _ => None,
    }
}

/// Probes the reply path: connects from a foreign address to a listener that the probe opens beside the backend.
pub async fn probe_reply_path(target: Backend) -> Finding {
    let check = "self-test";
    match probe::probe(target).await {
        Ok(ProbeOutcome::Connected) => Finding::ok(
            check,
            format!("a foreign address can connect beside {target}"),
        ),
        Ok(ProbeOutcome::RouteFound) => Finding::ok(
            check,
            format!("{target}: its replies are routed to the proxy; nothing was sent"),
        ),
        Ok(ProbeOutcome::OtherHost) => Finding::ok(check, format!("{target} is on another host")),
        Ok(ProbeOutcome::NoIpv6) => Finding::ok(
            check,
            format!("{target} is left out: this host has no IPv6"),
        ),
        Err(broken) => Finding::broken(check, format!("{target}: {broken}")),
    }
}

/// Reports a backend with port `same`: clients choose the port, so there is none to test.
pub fn port_of_clients(target: SocketAddr) -> Finding {
    let host = match target.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    Finding::ok(
        "backend",
        format!(
            "{host}:same is not connected to: clients choose the port; `peername doctor --target \
             {host}:PORT` tests one"
        ),
    )
}

/// Checks that the backend accepts an ordinary connection.
pub async fn check_reachable(target: SocketAddr) -> Finding {
    let check = "backend";
    let seen = match timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await {
        Ok(Ok(_)) => return Finding::ok(check, format!("{target} accepts connections")),
        Ok(Err(error)) => format!("{target}: {error}"),
        Err(_) => format!("{target} does not answer within {CONNECT_TIMEOUT:?}"),
    };
    let fix =
        "start the backend, or name the right one: --target, or `target` in the file of --config";
    Finding::fail(check, seen, fix)
}

/// Checks that the backend itself answers a connection from a documentation address. A refusal is an answer, too: it came back.
pub async fn connect_spoofed(target: SocketAddr, mark: u32) -> Finding {
    let check = "spoofed connect";
    let client = foreign_addr(target.ip());
    match connect_as(client, target, NonZeroU32::new(mark)).await {
        Ok(ConnectOutcome::Connected) => Finding::ok(check, format!("{target} answers {client}")),
        Ok(ConnectOutcome::Refused) => Finding::ok(
            check,
            format!("{target} refuses {client}, and its refusal came back"),
        ),
        Ok(ConnectOutcome::Silence) => Finding::fail(
            check,
            format!("{target} does not answer {client} within {CONNECT_TIMEOUT:?}"),
            "see the routes and the self-test above, and look for a packet filter that drops \
             foreign addresses: `nft list ruleset`",
        ),
        Err(error) if error.is_permission() => {
            Finding::fail(check, error.to_string(), "see CAP_NET_RAW above")
        }
        Err(error) => Finding::broken(check, format!("{target}: {error}")),
    }
}

/// Whether the packet filter has peername's table that recognizes replies by this mark.
fn has_reply_table(mark: NonZeroU32) -> bool {
    routes::list_filters()
        .is_ok_and(|tables| tables.iter().any(|table| table.reply_mark() == Some(mark)))
}

/// Where the routing tables send the replies of a backend to its clients.
enum ReplyRoute {
    Stays,
    Leaves,
    /// The backend is on another host.
    Unknown,
}

async fn reply_route(target: Backend) -> Result<ReplyRoute, SyscallError> {
    let Backend { address, transport } = target;
    let netlink = Netlink::open()?;
    let from = match locate_backend(&netlink, address).await? {
        BackendLocation::Loopback(ip) => SocketAddr::new(ip, address.port()),
        BackendLocation::ThisHost(address) => address,
        BackendLocation::OtherHost => return Ok(ReplyRoute::Unknown),
    };
    let stays = netlink
        .is_delivered_locally(transport, from, foreign_addr(from.ip()), None)
        .await?;
    Ok(if stays {
        ReplyRoute::Stays
    } else {
        ReplyRoute::Leaves
    })
}

/// Any number works; this is the one in docs/routes.md.
const EXAMPLE_MARK: Option<NonZeroU32> = NonZeroU32::new(123);
