//! Connects to the first of an origin's addresses that answers (Happy Eyeballs, RFC 8305).

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
/// Families alternate. The next attempt begins when the last one fails, or [`ATTEMPT_DELAY`] after it; all go on until
/// the first connection is established, and are cancelled then. So an address that does not answer costs that delay, and a
/// slow one is not given up for the next.
///
/// # Errors
///
/// The error of the attempt that failed last; [`UpstreamError::ConnectTimeout`] with the address that was tried first;
/// [`UpstreamError::NoSuchName`] without an address.
pub(super) async fn connect(
    addrs: &[SocketAddr],
    limit: Duration,
) -> Result<(TcpStream, SocketAddr), UpstreamError> {
    let (socket, addr) = match *addrs {
        [] => return Err(UpstreamError::NoSuchName),
        [addr] => {
            let connecting = timeout(limit, TcpStream::connect(addr)).await;
            let connected = connecting.map_err(|_| UpstreamError::ConnectTimeout(addr, limit))?;
            (
                connected.map_err(|error| UpstreamError::connect(addr, &error))?,
                addr,
            )
        }
        [first, ..] => {
            let connecting = timeout(limit, connect_staggered(addrs)).await;
            connecting.map_err(|_| UpstreamError::ConnectTimeout(first, limit))??
        }
    };
    // Without the socket options the connection is slower, but works.
    let _ = stream::tune_for_peer(&socket, addr.ip());
    Ok((socket, addr))
}

async fn connect_staggered(addrs: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), UpstreamError> {
    let mut attempts = JoinSet::new();
    let mut last = UpstreamError::NoSuchName;
    for addr in alternate_families(addrs).into_iter().take(MAX_ATTEMPTS) {
        attempts.spawn(async move { (addr, TcpStream::connect(addr).await) });
        let delay = pin!(sleep(ATTEMPT_DELAY));
        tokio::select! {
            Some(Ok((addr, ended))) = attempts.join_next() => match ended {
                Ok(socket) => return Ok((socket, addr)),
                Err(error) => last = UpstreamError::connect(addr, &error),
            },
            () = delay => {}
        }
    }
    while let Some(Ok((addr, ended))) = attempts.join_next().await {
        match ended {
            Ok(socket) => return Ok((socket, addr)),
            Err(error) => last = UpstreamError::connect(addr, &error),
        }
    }
    Err(last)
}

/// Takes addresses of both families in turns, beginning with that of the first one (RFC 8305, section 4).
fn alternate_families(addrs: &[SocketAddr]) -> Vec<SocketAddr> {
    let begins_with_v4 = addrs.first().is_some_and(SocketAddr::is_ipv4);
    let (first, second): (Vec<_>, Vec<_>) = addrs
        .iter()
        .partition(|addr| addr.is_ipv4() == begins_with_v4);
    let both = first.len().min(second.len());
    let rest = first[both..].iter().chain(&second[both..]);
    first
        .iter()
        .zip(&second)
        .flat_map(|(one, other)| [*one, *other])
        .chain(rest.copied())
        .collect()
}

/// RFC 8305, section 5: "Connection Attempt Delay", its recommended value.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
const MAX_ATTEMPTS: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate_in_the_resolvers_order() {
        let addr = |text: &str| SocketAddr::new(text.parse().unwrap(), 443);
        let alternated = |all: &[&str]| -> Vec<String> {
            let all: Vec<_> = all.iter().copied().map(addr).collect();
            let alternated = alternate_families(&all);
            alternated
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
