//! Connects to an origin at whichever of its addresses answers first (Happy Eyeballs, RFC 8305).

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use peername_sys::tcp::stream;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::error::UpstreamError;

/// Connects to one of these addresses, which are in the resolver's order (RFC 6724), within `limit`.
///
/// Families alternate. The next attempt begins when the last one fails, or [`ATTEMPT_DELAY`] after it began. All attempts run
/// until one has succeeded. So an address that does not answer costs only the delay, and a slow address keeps its chance.
///
/// # Errors
///
/// The error of the attempt that failed last; [`UpstreamError::ConnectTimeout`] with the address that was tried first;
/// [`UpstreamError::NoSuchName`] if `addrs` is empty.
pub(super) async fn connect(
    addrs: &[SocketAddr],
    limit: Duration,
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
        [first, ..] => timeout(limit, connect_staggered(addrs))
            .await
            .map_err(|_| UpstreamError::ConnectTimeout(first, limit))??,
    };
    // If the socket options can't be set, the connection is slower, but works.
    let _ = stream::tune_for_peer(&socket, addr.ip());
    Ok((socket, addr))
}

async fn connect_staggered(addrs: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), UpstreamError> {
    let mut attempts = JoinSet::new();
    let mut last_error = UpstreamError::NoSuchName;
    for addr in alternate_families(addrs).into_iter().take(MAX_ATTEMPTS) {
        attempts.spawn(async move { (addr, TcpStream::connect(addr).await) });
        let delay = pin!(sleep(ATTEMPT_DELAY));
        tokio::select! {
            Some(Ok((addr, connected))) = attempts.join_next() => match connected {
                Ok(socket) => return Ok((socket, addr)),
                Err(error) => last_error = UpstreamError::from_connect(addr, &error),
            },
            () = delay => {}
        }
    }
    while let Some(Ok((addr, connected))) = attempts.join_next().await {
        match connected {
            Ok(socket) => return Ok((socket, addr)),
            Err(error) => last_error = UpstreamError::from_connect(addr, &error),
        }
    }
    Err(last_error)
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
    use super::*;

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
