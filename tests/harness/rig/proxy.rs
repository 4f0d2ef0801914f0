//! The usual arrangement: the proxy on the lab's server, with backends in the test's own hands.

use std::net::SocketAddr;

use crate::harness::addr::{FRONT_V4, FRONT_V6, LISTEN_V4, TARGET_V4, TARGET_V6};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::Lab;
use crate::harness::peername::Peername;

/// Proxy, backends and hosts, dropped in this order.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) proxy: Peername,
    pub(crate) v4: Backend,
    pub(crate) v6: Backend,
    pub(crate) lab: Lab,
}

impl Rig {
    pub(crate) fn new(args: &[&str]) -> Self {
        Self::through(&[], args)
    }

    /// With the proxy started through other programs.
    pub(crate) fn through(through: &[&str], args: &[&str]) -> Self {
        let lab = Lab::new();
        Self {
            v4: Backend::listen(&lab.server, TARGET_V4),
            v6: Backend::listen(&lab.server, TARGET_V6),
            proxy: Peername::proxy_through(&lab, through, args),
            lab,
        }
    }

    /// A connection from the balancer that begins with these bytes.
    pub(crate) fn open(&self, bytes: &[u8]) -> Conn {
        Conn::open(&self.lab.balancer, LISTEN_V4, bytes)
    }

    /// Expects the next connection at the backend of the client's family, from exactly `client`.
    #[track_caller]
    pub(crate) fn accept(&self, client: SocketAddr) -> Conn {
        let backend = if client.is_ipv4() { &self.v4 } else { &self.v6 };
        let conn = backend.accept();
        assert_eq!(conn.peer(), client, "the client as the backend sees it");
        conn
    }

    /// Both ends of a connection of `client`: the balancer's and the backend's.
    #[track_caller]
    pub(crate) fn connect(&self, client: SocketAddr) -> (Conn, Conn) {
        let down = self.open(&header_of(client));
        (down, self.accept(client))
    }

    /// Expects that the proxy still does its work.
    #[track_caller]
    pub(crate) fn still_serves(&mut self, client: SocketAddr) {
        assert!(
            self.proxy.is_alive(),
            "the proxy ended:\n{}",
            self.proxy.log()
        );
        let (down, up) = self.connect(client);
        down.send(b"ping");
        assert_eq!(up.recv(4), b"ping");
        up.send(b"pong");
        assert_eq!(down.recv(4), b"pong");
    }

    /// Expects that no connection waits at either backend.
    #[track_caller]
    pub(crate) fn backends_saw_nobody(&self) {
        self.v4.saw_nobody();
        self.v6.saw_nobody();
    }
}

/// What a balancer sends for a client that connected to the front of its family.
pub(crate) fn header_of(client: SocketAddr) -> Vec<u8> {
    header_bytes::v2(client, front_of(client), &[])
}

pub(crate) fn front_of(client: SocketAddr) -> SocketAddr {
    if client.is_ipv4() { FRONT_V4 } else { FRONT_V6 }
}
