//! An upstream connection between connect(2) and the relay.

use std::io;

use peername_sys::tcp::stream;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Waits until the connection is established or has failed.
pub(crate) async fn wait_established(upstream: &TcpStream) -> io::Result<()> {
    upstream.writable().await?;
    match stream::take_error(upstream) {
        Ok(None) => Ok(()),
        Ok(Some(error)) | Err(error) => Err(error),
    }
}

/// Writes all the bytes. Only for the few before the relay begins.
pub(crate) async fn write_all(upstream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let send = || stream::send(upstream, bytes);
        let sent = upstream.async_io(Interest::WRITABLE, send).await?;
        bytes = bytes.get(sent..).unwrap_or_default();
    }
    Ok(())
}
