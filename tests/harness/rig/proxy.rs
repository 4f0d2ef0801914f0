//! The usual arrangement for TCP: the proxy on the lab's server, with backends scripted by the test.

use std::net::SocketAddr;

use crate::harness::addr::{FRONT_V4, FRONT_V6, LISTEN_V4, TARGET_V4, TARGET_V6, fresh_client_v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::Lab;
use crate::harness::peername::Peername;

/// Proxy, backends and hosts, dropped in this order.
#[derive(Debug)]
pub(crate) struct ProxyRig {
    pub(crate) proxy: Peername,
    pub(crate) backend_v4: Backend,
    pub(crate) backend_v6: Backend,
    pub(crate) lab: Lab,
}

impl ProxyRig {
    pub(crate) fn new(args: &[&str]) -> Self {
        Self::start_through(&[], args)
    }

    /// Starts the proxy through other programs.
    pub(crate) fn start_through(through: &[&str], args: &[&str]) -> Self {
        let lab = Lab::new();
        Self {
            backend_v4: Backend::listen(&lab.server, TARGET_V4),
            backend_v6: Backend::listen(&lab.server, TARGET_V6),
            proxy: Peername::proxy_through(&lab, through, args),
            lab,
        }
    }

    /// Opens a connection from the balancer that begins with these bytes.
    pub(crate) fn connect_and_send(&self, bytes: &[u8]) -> Conn {
        Conn::connect_and_send(&self.lab.balancer, LISTEN_V4, bytes)
    }

    /// Accepts the next connection at the backend of the client's family; asserts that it comes from exactly
    /// `client`.
    #[track_caller]
    pub(crate) fn accept_client(&self, client: SocketAddr) -> Conn {
        let backend = if client.is_ipv4() {
            &self.backend_v4
        } else {
            &self.backend_v6
        };
        backend.accept_from(client)
    }

    /// Opens a connection of `client`; returns both ends: the balancer's and the backend's.
    #[track_caller]
    pub(crate) fn connect_client(&self, client: SocketAddr) -> (Conn, Conn) {
        let down = self.connect_and_send(&header_for(client));
        (down, self.accept_client(client))
    }

    /// Asserts that the proxy is alive and relays a connection.
    #[track_caller]
    pub(crate) fn assert_serves(&mut self, client: SocketAddr) {
        assert!(
            self.proxy.is_alive(),
            "the proxy ended:\n{}",
            self.proxy.log()
        );
        let (down, up) = self.connect_client(client);
        down.assert_reaches(&up, b"ping");
        up.assert_reaches(&down, b"pong");
    }

    /// Asserts that no connection waits at either backend.
    #[track_caller]
    pub(crate) fn assert_no_backend_connection(&self) {
        self.backend_v4.assert_no_connection();
        self.backend_v6.assert_no_connection();
    }
}

/// Opens a connection of `client` from the lab's balancer to this listener.
#[track_caller]
pub(crate) fn connect_client(lab: &Lab, listen: SocketAddr, client: SocketAddr) -> Conn {
    Conn::connect_and_send(&lab.balancer, listen, &header_for(client))
}

/// Opens a connection of a fresh client; asserts that it reaches the backend with that client's address. Returns both ends: the
/// balancer's and the backend's.
#[track_caller]
pub(crate) fn connect_fresh_client(
    lab: &Lab,
    listen: SocketAddr,
    backend: &Backend,
) -> (Conn, Conn) {
    let client = fresh_client_v4();
    let down = connect_client(lab, listen, client);
    (down, backend.accept_from(client))
}

/// The header that a balancer sends for a client that connected to the frontend of its family.
pub(crate) fn header_for(client: SocketAddr) -> Vec<u8> {
    header_bytes::v2(client, front_of(client), &[])
}

pub(crate) fn front_of(client: SocketAddr) -> SocketAddr {
    if client.is_ipv4() { FRONT_V4 } else { FRONT_V6 }
}
