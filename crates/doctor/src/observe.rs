//! Observes what a balancer sends: listens, and identifies the protocol of the first bytes.

use std::net::SocketAddr;
use std::time::Duration;

use data_encoding::HEXLOWER;
use peername_proto::{ProtocolGuess, guess_protocol};
use peername_sys::NameCall;
use peername_sys::socket::BindOptions;
use peername_sys::tcp::listener;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::finding::Finding;

/// Accepts connections on `address` until one of them has sent bytes, for at most `limit`. A
/// connection that is closed before it has sent any is a health check and does not count.
pub async fn first_bytes(address: SocketAddr, limit: Duration) -> Finding {
    let listener = match open(address) {
        Ok(listener) => listener,
        Err(error) => return Finding::broken(CHECK, format!("{address}: {error}")),
    };
    let mut observed = Observed::default();
    match timeout(limit, observed.first_bytes(&listener)).await {
        Ok(Ok((peer, bytes))) => judge(peer, &bytes),
        Ok(Err(error)) => Finding::broken(CHECK, format!("{address}: {error}")),
        Err(_) => observed.silence(address, limit),
    }
}

fn open(address: SocketAddr) -> peername_sys::Result<TcpListener> {
    TcpListener::from_std(listener::listen(address, BindOptions::default())?).call("epoll_ctl(2)")
}

/// The connections accepted so far.
#[derive(Default)]
struct Observed {
    open: JoinSet<(SocketAddr, Vec<u8>)>,
    closed: usize,
}

impl Observed {
    async fn first_bytes(
        &mut self,
        listener: &TcpListener,
    ) -> peername_sys::Result<(SocketAddr, Vec<u8>)> {
        loop {
            tokio::select! {
                Some(ended) = self.open.join_next() => match ended {
                    Ok((peer, bytes)) if !bytes.is_empty() => return Ok((peer, bytes)),
                    _ => self.closed += 1,
                },
                accepted = listener.accept(), if self.open.len() < MAX_OPEN => {
                    let (connection, peer) = accepted.call("accept4(2)")?;
                    self.open.spawn(async move { (peer, read_start(connection).await) });
                }
            }
        }
    }

    fn silence(&self, address: SocketAddr, limit: Duration) -> Finding {
        if !self.open.is_empty() {
            return Finding::fail(
                CHECK,
                format!("{} to {address}, without any data", plural(self.open.len())),
                "the sender waits for the client to speak first: with an AWS NLB set the target \
                 group's proxy_protocol_v2.client_to_server.header_placement to on_first_ack; \
                 elsewhere switch the PROXY protocol on",
            );
        }
        if self.closed > 0 {
            return Finding::warn(
                CHECK,
                format!(
                    "only health checks: {} closed without any data",
                    plural(self.closed)
                ),
                "observe while a client connects",
            );
        }
        Finding::fail(
            CHECK,
            format!(
                "no client connected to {address} within {}",
                humantime::format_duration(limit)
            ),
            "check the sender's target, and the packet filters between",
        )
    }
}

/// Reads enough bytes to identify the protocol, or fewer if the peer pauses for [`MAX_PAUSE`] or closes the connection. A
/// peer that has sent nothing is waited for until it closes the connection.
async fn read_start(mut connection: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(GUESS_LEN);
    while bytes.len() < GUESS_LEN {
        match timeout(MAX_PAUSE, connection.read_buf(&mut bytes)).await {
            Ok(Ok(0) | Err(_)) => break,
            Err(_) if !bytes.is_empty() => break,
            _ => {}
        }
    }
    bytes
}

fn judge(peer: SocketAddr, bytes: &[u8]) -> Finding {
    let switch_on = "switch the PROXY protocol on at the sender, or let clients connect to the \
                     backend directly";
    match guess_protocol(bytes) {
        Some(header @ (ProtocolGuess::ProxyV1 | ProtocolGuess::ProxyV2)) => {
            Finding::ok(CHECK, format!("{header} from {peer}"))
        }
        Some(header @ (ProtocolGuess::ProxyV2Datagram | ProtocolGuess::Spp)) => Finding::fail(
            CHECK,
            format!("{header} from {peer}, over TCP"),
            "the sender mixes up TCP and UDP: check its listener's protocol",
        ),
        Some(other) => Finding::fail(CHECK, format!("{other} from {peer}, no header"), switch_on),
        None => Finding::fail(
            CHECK,
            // Peer input is shown as hex only.
            format!(
                "from {peer} no PROXY header; first bytes {}",
                HEXLOWER.encode(bytes)
            ),
            switch_on,
        ),
    }
}

fn plural(connections: usize) -> String {
    match connections {
        1 => "1 connection".to_owned(),
        n => format!("{n} connections"),
    }
}

const CHECK: &str = "observed";

/// The bytes to read: the signature of version 2 and the four bytes behind it.
const GUESS_LEN: usize = 16;

/// The longest pause of a peer that has begun to send: a header arrives in one segment or nearly so.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Connections that are observed at a time, so that a scan can't take all descriptors.
const MAX_OPEN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(bytes: &[u8]) -> String {
        judge("192.0.2.1:1".parse().unwrap(), bytes).to_string()
    }

    #[test]
    fn header_is_ok_and_other_protocols_are_named() {
        assert_eq!(
            judged(b"PROXY TCP4 192.0"),
            "ok    observed: a PROXY protocol header of version 1 from 192.0.2.1:1"
        );
        assert!(judged(b"SSH-2.0-OpenSSH_").starts_with("FAIL  observed: SSH from"));
        assert!(judged(b"\x1b[31mred").contains("first bytes 1b5b33316d726564"));
    }
}
