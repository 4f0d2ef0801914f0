//! The configuration of a proxy: plain data, already validated.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use peername_proto::SourcePolicy;
use peername_relay::{Limits, Method};
use peername_server::access::clients::ClientAccess;
use peername_server::access::network_set::NetworkSet;
use peername_server::addr::{LocalAddr, Target};
use peername_server::header_limits::HeaderLimits;

use crate::policy::destination::DestinationPolicy;

/// The configuration of one service, which serves the connections of some listeners.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether the listeners accept connections that TPROXY rules redirect (IP_TRANSPARENT).
    pub transparent: bool,
    /// The peers that may send headers.
    pub trust: NetworkSet,
    /// Bounds on the header.
    pub header: HeaderLimits,
    /// The clients that may connect.
    pub clients: Arc<ClientAccess>,
    /// The policy for claimed sources.
    pub source_policy: SourcePolicy,
    /// The destinations that headers may name; `None` where headers can't choose the destination, and every client goes to
    /// the fixed targets.
    pub destination_policy: Option<DestinationPolicy>,
    /// The settings of connections to the backend.
    pub upstream: UpstreamConfig,
    /// The relay method: how bytes are moved.
    pub relay: Method,
    /// Idle timeouts.
    pub limits: Limits,
    /// The types of the TLVs that the log line of a connection includes.
    pub log_tlvs: Vec<u8>,
}

/// The settings of connections to the backend.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// The targets.
    pub targets: Targets,
    /// SO_MARK of every upstream socket, including those without a spoofed source.
    pub mark: Option<NonZeroU32>,
    /// The source port of upstream connections.
    pub source_port: SourcePort,
    /// The collision policy: what happens when the client's address and port are taken.
    pub on_collision: OnCollision,
    /// The connect timeout: from the first SYN to an established connection, and again until the outbound header is written.
    pub connect_timeout: Duration,
    /// The version of the header that the backend gets; `None` for no header.
    pub send_proxy: Option<SendProxy>,
}

/// The target of each address family. Clients of a family without one are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// The target of IPv4 clients.
    pub v4: Option<TargetRule>,
    /// The target of IPv6 clients.
    pub v6: Option<TargetRule>,
}

impl Targets {
    /// The target of clients of this address's family.
    pub fn for_client(&self, client: IpAddr) -> Option<TargetRule> {
        match client {
            IpAddr::V4(_) => self.v4,
            IpAddr::V6(_) => self.v6,
        }
    }

    /// The targets, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = TargetRule> + use<> {
        self.v4.into_iter().chain(self.v6)
    }

    /// Sets the target of the address family of `target`.
    ///
    /// # Errors
    ///
    /// The target that the family has already, which stays.
    pub fn insert(&mut self, target: TargetRule) -> Result<(), TargetRule> {
        let slot = match target.ip() {
            IpAddr::V4(_) => &mut self.v4,
            IpAddr::V6(_) => &mut self.v6,
        };
        match *slot {
            Some(earlier) => Err(earlier),
            None => {
                *slot = Some(target);
                Ok(())
            }
        }
    }
}

/// The target of the clients of one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetRule {
    /// One address and port.
    Fixed(Target),
    /// This address, with the port of the listener that accepted the connection.
    SamePort(IpAddr),
}

impl TargetRule {
    /// The target of connections to this listener.
    pub fn for_listener(self, listener: LocalAddr) -> Target {
        match self {
            Self::Fixed(target) => target,
            Self::SamePort(ip) => Target(SocketAddr::new(ip, listener.0.port())),
        }
    }

    /// The address without a port.
    pub fn ip(self) -> IpAddr {
        match self {
            Self::Fixed(target) => target.0.ip(),
            Self::SamePort(ip) => ip,
        }
    }
}

impl From<SocketAddr> for TargetRule {
    fn from(target: SocketAddr) -> Self {
        Self::Fixed(Target(target))
    }
}

impl Display for TargetRule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(target) => write!(f, "{target}"),
            Self::SamePort(IpAddr::V4(ip)) => write!(f, "{ip}:same"),
            Self::SamePort(IpAddr::V6(ip)) => write!(f, "[{ip}]:same"),
        }
    }
}

/// The source port of an upstream connection from the client's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePort {
    /// The client's own.
    #[default]
    Keep,
    /// A port that the kernel chooses, for backends that use only the address. There are no collisions.
    Any,
}

/// The collision policy: what happens when the client's address and port are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCollision {
    /// Keep the address, let the kernel choose the port.
    #[default]
    Ephemeral,
    /// Refuse the connection.
    Fail,
}

/// The version of the header that the backend gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProxy {
    /// Text, addresses only.
    V1,
    /// Binary, with the TLVs of the received header.
    V2,
}
