//! Probes whether a backend answers a connection from any address.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use peername_sys::event::readiness::register_stream;
use peername_sys::socket::upstream::UpstreamSocket;
use peername_sys::tcp::stream;
use peername_sys::{NameCall, SyscallError};
use tokio::time::timeout;

/// The result of a connection attempt.
pub(super) enum ConnectOutcome {
    Connected,
    Refused,
    Silence,
}

/// Connects to the backend from the address `source`, with this mark.
pub(super) async fn connect_as(
    source: IpAddr,
    target: SocketAddr,
    mark: Option<NonZeroU32>,
) -> Result<ConnectOutcome, SyscallError> {
    let socket = UpstreamSocket::new_tcp(target)?;
    socket.set_mark(mark)?;
    socket.set_transparent()?;
    socket.bind_any_port(source)?;
    let connection = register_stream(socket.connect(target)?)?;
    if timeout(CONNECT_TIMEOUT, connection.writable())
        .await
        .is_err()
    {
        return Ok(ConnectOutcome::Silence);
    }
    match stream::take_error(&connection).call("getsockopt(SO_ERROR)")? {
        Some(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(ConnectOutcome::Refused),
        Some(error) => Err(error).call("connect(2)"),
        // The socket does not show whether NAT replaces the source; `doctor` checks that.
        None => Ok(ConnectOutcome::Connected),
    }
}

/// Long enough for one lost SYN: the kernel retransmits it after a second.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
