//! The program in the container of `peername doctor agent`: accepts one connection, and prints its peer.

use std::io::{self, Write, stdout};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::finding::Finding;

/// Prints `listening` once a client may connect; the finding names the peer that accept(2) and getpeername(2) return.
pub fn accept_one(address: SocketAddr) -> Finding {
    match accept_within(address, ACCEPTS_WITHIN) {
        Ok(peers) if peers.accept == peers.getpeername => {
            Finding::ok(ACCEPTED, peers.accept.to_string())
        }
        Ok(peers) => Finding::broken(
            ACCEPTED,
            format!(
                "{} by accept(2), {} by getpeername(2)",
                peers.accept, peers.getpeername
            ),
        ),
        Err(error) => Finding::broken(ACCEPTED, error.to_string()),
    }
}

/// The peer of a connection, as each system call returns it.
struct Peers {
    accept: SocketAddr,
    getpeername: SocketAddr,
}

/// Accepts a connection in a thread, which is left behind after `limit`. While accept(2) waits for the agent, no signal that
/// this process could send itself interrupts the call, because the process is the init of a PID namespace (pid_namespaces(7)).
fn accept_within(address: SocketAddr, limit: Duration) -> io::Result<Peers> {
    let (sender, accepted) = channel();
    thread::Builder::new().spawn(move || sender.send(accept(address)))?;
    accepted.recv_timeout(limit).unwrap_or_else(|_| {
        Err(io::Error::other(format!(
            "accept(2) has returned no connection within {limit:?}"
        )))
    })
}

fn accept(address: SocketAddr) -> io::Result<Peers> {
    let listener = TcpListener::bind(address)?;
    writeln!(stdout(), "{LISTENING}")?;
    let (connection, accept) = listener.accept()?;
    let getpeername = connection.peer_addr()?;
    Ok(Peers {
        accept,
        getpeername,
    })
}

/// Printed once a client may connect.
pub(super) const LISTENING: &str = "listening";
/// The subject of the finding.
pub(super) const ACCEPTED: &str = "accepted";
/// Longer than `doctor agent` waits, so that it only ends a container whose `doctor agent` was killed.
const ACCEPTS_WITHIN: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_a_connection_is_limited() {
        let any_port = SocketAddr::from(([0, 0, 0, 0], 0));
        let Err(error) = accept_within(any_port, Duration::from_millis(50)) else {
            panic!("a connection");
        };
        assert!(error.to_string().contains("no connection within 50ms"));
    }
}
