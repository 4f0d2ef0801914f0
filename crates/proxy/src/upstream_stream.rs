//! An upstream connection between connect(2) and the relay.

use std::io;
use std::time::Duration;

use peername_server::addr::Target;
use peername_sys::tcp::stream;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::outcome::Failure;

/// Waits until the connection is established: [`Failure::ConnectTimeout`] if it is not within `after`.
pub(crate) async fn wait_connected(
    upstream: &TcpStream,
    target: Target,
    after: Duration,
) -> Result<(), Failure> {
    match timeout(after, wait_established(upstream)).await {
        Ok(established) => established.map_err(|error| Failure::refused(target, error)),
        Err(_) => Err(Failure::ConnectTimeout {
            upstream: target,
            after,
        }),
    }
}

/// Writes the rest of the outbound header within `after`: a backend may read nothing, and no idle timeout runs yet.
pub(crate) async fn write_header(
    upstream: &TcpStream,
    target: Target,
    rest: &[u8],
    after: Duration,
) -> Result<(), Failure> {
    let Ok(written) = timeout(after, write_all(upstream, rest)).await else {
        // Without a reset the kernel would go on sending what it has of the header.
        let _ = stream::reset_on_close(upstream);
        return Err(Failure::HeaderTimeout {
            upstream: target,
            after,
        });
    };
    written.map_err(|error| Failure::refused(target, error))
}

async fn wait_established(upstream: &TcpStream) -> io::Result<()> {
    upstream.writable().await?;
    match stream::take_error(upstream) {
        Ok(None) => Ok(()),
        Ok(Some(error)) | Err(error) => Err(error),
    }
}

async fn write_all(upstream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let send = || stream::send(upstream, bytes);
        let sent = upstream.async_io(Interest::WRITABLE, send).await?;
        bytes = bytes.get(sent..).unwrap_or_default();
    }
    Ok(())
}
