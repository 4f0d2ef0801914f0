//! Real servers, as Debian ships them, and how each reports its client's address.

pub(crate) mod fail2ban;
pub(crate) mod nginx;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod script;
pub(crate) mod sshd;

use std::net::SocketAddr;

pub(crate) use fail2ban::Fail2ban;
pub(crate) use nginx::Nginx;
pub(crate) use postgres::Postgres;
pub(crate) use redis::Redis;
pub(crate) use script::{Node, Python, Socat};
pub(crate) use sshd::Sshd;

use crate::harness::lab::Host;

/// A server that listens on [`crate::harness::addr::TARGET_V4`] and [`crate::harness::addr::TARGET_V6`] only.
pub(crate) trait Server {
    fn start(host: &Host) -> Self;

    /// Makes one connection from `client` to `front` and returns the client's address as the server
    /// itself reports it.
    fn reported_client(&self, client: &Host, front: SocketAddr) -> SocketAddr;
}
