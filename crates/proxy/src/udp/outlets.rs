//! The sockets from which answers leave when a TPROXY rule brought the request.
//!
//! The sender waits for an answer from where it sent to: any address and any port. The address could be
//! given with each datagram (IP_PKTINFO), the port can't; so each has a socket of its own.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, UdpSocket};

use peername_sys::{Result, transparent};

/// One worker's.
#[derive(Debug, Default)]
pub(crate) struct Outlets {
    sockets: HashMap<SocketAddr, UdpSocket>,
    /// As they were opened.
    order: VecDeque<SocketAddr>,
}

impl Outlets {
    /// The socket whose datagrams come from `original`. When there are too many ([`MOST`]) or no
    /// descriptors are left, older ones make room.
    pub(crate) fn from(&mut self, original: SocketAddr) -> Result<&UdpSocket> {
        if !self.sockets.contains_key(&original) {
            let socket = match transparent::sender(original) {
                Err(failed) if failed.is_exhaustion() => {
                    self.clear();
                    transparent::sender(original)?
                }
                opened => opened?,
            };
            if self.order.len() >= MOST
                && let Some(oldest) = self.order.pop_front()
            {
                self.sockets.remove(&oldest);
            }
            self.order.push_back(original);
            self.sockets.insert(original, socket);
        }
        Ok(&self.sockets[&original])
    }

    fn clear(&mut self) {
        self.sockets.clear();
        self.order.clear();
    }
}

/// Addresses and ports that clients use at once. Each takes a descriptor; one that was closed costs five
/// system calls when it is needed again.
pub(crate) const MOST: usize = 256;
