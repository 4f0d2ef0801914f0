//! Connects to an origin at whichever of its addresses answers first (Happy Eyeballs, RFC 8305).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use peername_sys::tcp::stream;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection_permit::ConnectionPermit;
use super::error::UpstreamError;

/// Connects to one of these addresses, which are in the resolver's order (RFC 6724), within `limit`.
///
/// Families alternate. The next attempt begins when the last one fails, or [`ATTEMPT_DELAY`] after it began. All attempts run
/// until one has succeeded. So an address that does not answer costs only the delay, and a slow address keeps its chance.
///
/// The caller has a permit for one socket. Each attempt beside a running one needs another, from `spare_permit`; without it,
/// the attempt waits until a running one fails, or a permit is free.
///
/// # Errors
///
/// The error of the attempt that failed last; [`UpstreamError::ConnectTimeout`] with the address that was tried first;
/// [`UpstreamError::NoSuchName`] if `addrs` is empty.
pub(super) async fn connect(
    addrs: &[SocketAddr],
    limit: Duration,
    spare_permit: impl Fn() -> Option<ConnectionPermit>,
) -> Result<(TcpStream, SocketAddr), UpstreamError> {
    let (socket, addr) = match *addrs {
        [] => return Err(UpstreamError::NoSuchName),
        [addr] => {
            let socket = timeout(limit, TcpStream::connect(addr))
                .await
                .map_err(|_| UpstreamError::ConnectTimeout(addr, limit))?
                .map_err(|error| UpstreamError::from_connect(addr, &error))?;
            (socket, addr)
        }
        [first, ..] => timeout(limit, connect_staggered(addrs, spare_permit))
            .await
            .map_err(|_| UpstreamError::ConnectTimeout(first, limit))??,
    };
    // If the socket options can't be set, the connection is slower, but works.
    let _ = stream::tune_for_peer(&socket, addr.ip());
    Ok((socket, addr))
}

async fn connect_staggered(
    addrs: &[SocketAddr],
    spare_permit: impl Fn() -> Option<ConnectionPermit>,
) -> Result<(TcpStream, SocketAddr), UpstreamError> {
    // Dropped after the attempts.
    let mut permits = Vec::new();
    let mut attempts = Attempts::default();
    for addr in alternate_families(addrs).into_iter().take(MAX_ATTEMPTS) {
        while permits.len() < attempts.running.len() {
            if let Some(permit) = spare_permit() {
                permits.push(permit);
            } else if let Ok(Some(connected)) = timeout(ATTEMPT_DELAY, attempts.join_next()).await {
                return Ok(connected);
            }
        }
        attempts
            .running
            .spawn(async move { (addr, TcpStream::connect(addr).await) });
        if let Ok(Some(connected)) = timeout(ATTEMPT_DELAY, attempts.join_next()).await {
            return Ok(connected);
        }
    }
    while !attempts.running.is_empty() {
        permits.truncate(attempts.running.len() - 1);
        if let Some(connected) = attempts.join_next().await {
            return Ok(connected);
        }
    }
    Err(attempts.last_error.unwrap_or(UpstreamError::NoSuchName))
}

/// The running attempts to connect, and the error of the one that failed last.
#[derive(Default)]
struct Attempts {
    running: JoinSet<(SocketAddr, io::Result<TcpStream>)>,
    last_error: Option<UpstreamError>,
}

impl Attempts {
    /// Waits until an attempt has ended; `None` if it has failed. Cancel-safe.
    async fn join_next(&mut self) -> Option<(TcpStream, SocketAddr)> {
        let (addr, connected) = self.running.join_next().await?.ok()?;
        match connected {
            Ok(socket) => Some((socket, addr)),
            Err(error) => {
                self.last_error = Some(UpstreamError::from_connect(addr, &error));
                None
            }
        }
    }
}

/// Orders addresses so that families alternate, beginning with the family of the first address (RFC 8305, section 4).
fn alternate_families(addrs: &[SocketAddr]) -> Vec<SocketAddr> {
    let begins_with_v4 = addrs.first().is_some_and(SocketAddr::is_ipv4);
    let (first, second): (Vec<SocketAddr>, Vec<SocketAddr>) = addrs
        .iter()
        .partition(|addr| addr.is_ipv4() == begins_with_v4);
    let pairs = first.len().min(second.len());
    first
        .iter()
        .zip(&second)
        .flat_map(|(first, second)| [first, second])
        .chain(&first[pairs..])
        .chain(&second[pairs..])
        .copied()
        .collect()
}

/// The time between two attempts: the recommended value of the "Connection Attempt Delay" (RFC 8305, section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// The maximum number of addresses that are tried.
const MAX_ATTEMPTS: usize = 6;

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::sleep;

    use super::*;
    use crate::upstream::connection_cap::ConnectionCap;

    const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    /// A listener that answers no SYN: the kernel admits one connection more than the backlog, and drops the SYN of the next one.
    struct SilentListener {
        addr: SocketAddr,
        _listener: TcpListener,
        _backlog: TcpStream,
    }

    impl SilentListener {
        async fn start() -> Self {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(LOOPBACK).unwrap();
            let listener = socket.listen(0).unwrap();
            let addr = listener.local_addr().unwrap();
            Self {
                addr,
                _listener: listener,
                _backlog: TcpStream::connect(addr).await.unwrap(),
            }
        }
    }

    #[tokio::test]
    async fn attempt_beside_a_running_one_needs_a_permit() {
        let silent = SilentListener::start().await;
        let open = TcpListener::bind(LOOPBACK).await.unwrap();
        let addrs = [silent.addr, open.local_addr().unwrap()];
        let limit = ATTEMPT_DELAY * 4;
        let client = IpAddr::from([192, 0, 2, 1]);
        let full = ConnectionCap::new(1);
        let connection = full.acquire(client).unwrap();
        let alone = connect(&addrs, limit, || full.acquire_spare(client)).await;
        assert!(
            matches!(alone, Err(UpstreamError::ConnectTimeout(addr, _)) if addr == silent.addr),
            "{alone:?}"
        );
        let cap = ConnectionCap::new(8);
        let _connection = cap.acquire(client).unwrap();
        let (_, addr) = connect(&addrs, limit, || cap.acquire_spare(client))
            .await
            .unwrap();
        assert_eq!(addr, addrs[1]);
        // Another connection is closed while the attempt waits. The first address stays silent.
        let late = connect(&addrs, limit, || full.acquire_spare(client));
        let close = async {
            sleep(ATTEMPT_DELAY / 2).await;
            drop(connection);
        };
        let (late, ()) = tokio::join!(late, close);
        assert_eq!(late.unwrap().1, addrs[1]);
    }

    #[tokio::test]
    async fn failed_attempts_return_their_permits() {
        let closed = TcpSocket::new_v4().unwrap();
        closed.bind(LOOPBACK).unwrap();
        let closed = closed.local_addr().unwrap();
        let silent = SilentListener::start().await;
        let client = IpAddr::from([192, 0, 2, 1]);
        let cap = ConnectionCap::new(8);
        let _connection = cap.acquire(client).unwrap();
        let addrs = [silent.addr, closed, closed, closed];
        let dial = connect(&addrs, ATTEMPT_DELAY * 3, || cap.acquire_spare(client));
        let count = async {
            sleep(ATTEMPT_DELAY * 2).await;
            cap.usage().in_use
        };
        let (failed, in_use) = tokio::join!(dial, count);
        assert!(
            matches!(failed, Err(UpstreamError::ConnectTimeout(..))),
            "{failed:?}"
        );
        assert_eq!(in_use, 1);
    }

    #[tokio::test]
    async fn attempt_after_a_failed_one_needs_no_permit() {
        let closed = TcpSocket::new_v4().unwrap();
        closed.bind(LOOPBACK).unwrap();
        let open = TcpListener::bind(LOOPBACK).await.unwrap();
        let addrs = [closed.local_addr().unwrap(), open.local_addr().unwrap()];
        let (_, addr) = connect(&addrs, Duration::from_secs(10), || None)
            .await
            .unwrap();
        assert_eq!(addr, addrs[1]);
    }

    #[test]
    fn families_alternate_in_the_resolvers_order() {
        let alternated = |ips: &[&str]| -> Vec<String> {
            let addrs: Vec<_> = ips
                .iter()
                .map(|ip| SocketAddr::new(ip.parse().unwrap(), 443))
                .collect();
            alternate_families(&addrs)
                .iter()
                .map(|addr| addr.ip().to_string())
                .collect()
        };
        assert_eq!(
            alternated(&["2001:db8::1", "2001:db8::2", "192.0.2.1", "2001:db8::3"]),
            ["2001:db8::1", "192.0.2.1", "2001:db8::2", "2001:db8::3"]
        );
        assert_eq!(
            alternated(&["192.0.2.1", "192.0.2.2", "2001:db8::1"]),
            ["192.0.2.1", "2001:db8::1", "192.0.2.2"]
        );
    }
}
