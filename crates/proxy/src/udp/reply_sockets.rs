//! Sockets that send replies from the original destination, where a TPROXY rule redirected the request.
//!
//! The sender expects a reply from the address and port that it sent to. The source address could be set for each
//! datagram (IP_PKTINFO), the source port can't. So each address and port has a socket of its own. While it is open, no
//! other program can bind that port on all addresses, so it is closed after the idle timeout.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use peername_sys::socket::transparent;
use peername_sys::throttle::Throttle;
use peername_sys::{Result, SyscallError};

/// The reply sockets of one worker, by the address and port that they send from.
#[derive(Debug)]
pub(crate) struct ReplySockets {
    sockets: HashMap<SocketAddr, ReplySocket>,
    /// Idle timeout: a socket that has sent no reply for so long is closed.
    idle: Duration,
}

#[derive(Debug)]
struct ReplySocket {
    socket: UdpSocket,
    used_at: Instant,
}

impl ReplySockets {
    pub(crate) fn new(idle: Duration) -> Self {
        Self {
            sockets: HashMap::new(),
            idle,
        }
    }

    /// Returns the socket that sends from `source`, and opens it if necessary. At [`MAX_REPLY_SOCKETS`], the least recently
    /// used socket is evicted; when file descriptors are exhausted, all are.
    ///
    /// # Errors
    ///
    /// A system call fails: EADDRINUSE where another socket of this host has the port.
    pub(crate) fn socket_for(&mut self, source: SocketAddr, now: Instant) -> Result<&UdpSocket> {
        let socket = match self.sockets.remove(&source) {
            Some(reply_socket) => reply_socket.socket,
            None => self.open(source)?,
        };
        let reply_socket = ReplySocket {
            socket,
            used_at: now,
        };
        Ok(&self
            .sockets
            .entry(source)
            .insert_entry(reply_socket)
            .into_mut()
            .socket)
    }

    /// Closes sockets after their idle timeout.
    pub(crate) fn close_idle(&mut self, now: Instant) {
        let idle = self.idle;
        self.sockets
            .retain(|_, reply_socket| now.saturating_duration_since(reply_socket.used_at) < idle);
    }

    /// Closes all sockets: another process is about to open its own.
    pub(crate) fn close_all(&mut self) {
        self.sockets.clear();
    }

    fn open(&mut self, source: SocketAddr) -> Result<UdpSocket> {
        let opened = match transparent::send_only_udp(source) {
            Err(error) if error.is_exhaustion() => {
                self.sockets.clear();
                transparent::send_only_udp(source)
            }
            opened => opened,
        };
        match &opened {
            Ok(_) if self.sockets.len() >= MAX_REPLY_SOCKETS => self.evict_one(),
            Err(error) if error.source.kind() == ErrorKind::AddrInUse => {
                warn_of_taken_port(source, error);
            }
            _ => {}
        }
        opened
    }

    /// Evicts the least recently used socket. Scanning all costs less than opening one.
    fn evict_one(&mut self) {
        let oldest = self
            .sockets
            .iter()
            .min_by_key(|(_, reply_socket)| reply_socket.used_at);
        if let Some((&source, _)) = oldest {
            self.sockets.remove(&source);
        }
    }
}

fn warn_of_taken_port(source: SocketAddr, error: &SyscallError) {
    if let Some(suppressed) = PORT_TAKEN_LOG.pass() {
        tracing::warn!(
            suppressed,
            "replies can't be sent from {source}: {error}. Another socket of this host has the port, on \
             that address or on all (0.0.0.0, [::]): bind its program to 127.0.0.1 or ::1, or leave the \
             port out of --tproxy-ports"
        );
    }
}

/// Limit of open reply sockets, one for each address and port that clients send to. Each takes a file descriptor;
/// opening one again costs five system calls.
pub const MAX_REPLY_SOCKETS: usize = 256;
/// Rate limit of a warning that each datagram may cause.
static PORT_TAKEN_LOG: Throttle = Throttle::new();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_socket_is_evicted() {
        let start = Instant::now();
        let mut reply_sockets = ReplySockets::new(Duration::from_secs(60));
        let reply_socket = |second| ReplySocket {
            socket: UdpSocket::bind("127.0.0.1:0").unwrap(),
            used_at: start + Duration::from_secs(second),
        };
        let addr = |port| SocketAddr::from(([192, 0, 2, 1], port));
        for (port, used_at_second) in [(1, 9), (2, 3), (3, 5)] {
            reply_sockets
                .sockets
                .insert(addr(port), reply_socket(used_at_second));
        }
        reply_sockets.evict_one();
        assert!(!reply_sockets.sockets.contains_key(&addr(2)) && reply_sockets.sockets.len() == 2);
        reply_sockets.close_idle(start + Duration::from_secs(65));
        assert!(reply_sockets.sockets.contains_key(&addr(1)) && reply_sockets.sockets.len() == 1);
    }
}
