//! The configuration of a proxy: validated, immutable, shared.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use peername_relay::{Limits, Method};
use peername_server::addr::{LocalAddr, Target};
use peername_server::header_limits::HeaderLimits;
use peername_server::trust_list::TrustList;

use crate::policy::destination::DestinationPolicy;
use crate::policy::source::SourcePolicy;

/// The rules of some listeners' connections. Making one has no side effects.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether the listeners take what TPROXY rules bring.
    pub transparent: bool,
    /// Who may send headers.
    pub trust: TrustList,
    /// Bounds on the header.
    pub header: HeaderLimits,
    /// Which claimed sources are refused.
    pub source_policy: SourcePolicy,
    /// Which destinations headers may name; `None`: every client goes to the fixed targets.
    pub destination_policy: Option<DestinationPolicy>,
    /// How the backend is reached.
    pub upstream: Upstream,
    /// How bytes are moved.
    pub relay: Method,
    /// Idle timeouts.
    pub limits: Limits,
    /// TLVs whose values go into the log line of a connection.
    pub log_tlvs: Vec<u8>,
}

/// How the backend is reached.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Where IPv4 clients go.
    pub target_v4: TargetRule,
    /// Where IPv6 clients go.
    pub target_v6: TargetRule,
    /// SO_MARK of every upstream socket, also of those that claim no source.
    pub mark: Option<NonZeroU32>,
    /// Whether a connection has the client's port too.
    pub source_port: SourcePort,
    /// What happens when the client's exact 4-tuple is taken.
    pub on_collision: OnCollision,
    /// From the first SYN to an established connection.
    pub connect_timeout: Duration,
    /// The header that the backend gets in turn.
    pub send_proxy: Option<SendProxy>,
}

/// Where the clients of one family go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetRule {
    /// To one address and port.
    At(Target),
    /// To the port of this host that they came to here.
    SamePort(IpAddr),
}

impl TargetRule {
    /// The target of connections to this listener.
    pub fn for_listener(self, listener: LocalAddr) -> Target {
        match self {
            Self::At(target) => target,
            Self::SamePort(ip) => Target(SocketAddr::new(ip, listener.0.port())),
        }
    }

    /// The host.
    pub fn ip(self) -> IpAddr {
        match self {
            Self::At(target) => target.0.ip(),
            Self::SamePort(ip) => ip,
        }
    }
}

impl From<SocketAddr> for TargetRule {
    fn from(target: SocketAddr) -> Self {
        Self::At(Target(target))
    }
}

impl Display for TargetRule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(target) => write!(f, "{target}"),
            Self::SamePort(IpAddr::V4(ip)) => write!(f, "{ip}:same"),
            Self::SamePort(IpAddr::V6(ip)) => write!(f, "[{ip}]:same"),
        }
    }
}

/// Which port a connection in the client's name comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePort {
    /// The client's own.
    #[default]
    Keep,
    /// Whichever the kernel chooses: for backends that care about the address only. There are no
    /// collisions.
    Any,
}

/// What happens when a live connection already has the client's address and port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCollision {
    /// Keep the address, let the kernel choose the port.
    #[default]
    Ephemeral,
    /// Refuse the connection.
    Fail,
}

/// Version of the header that is sent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProxy {
    /// Text, addresses only.
    V1,
    /// Binary, with the TLVs that came.
    V2,
}
