//! What a proxy was told to do: validated, immutable, shared.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use peername_proto::Header;
use peername_relay::{Limits, Method};

use crate::addr::{LocalAddr, Target};
use crate::destination::Destinations;
use crate::outcome::Failure;
use crate::preface;
use crate::source::SourcePolicy;
use crate::trust::TrustList;

/// Everything that some listeners' connections go by. Making one has no side effects.
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
    pub destinations: Option<Destinations>,
    /// How the backend is reached.
    pub upstream: Upstream,
    /// How bytes are moved.
    pub relay: Method,
    /// How long silence is borne.
    pub limits: Limits,
    /// TLVs whose values go into the log line of a connection.
    pub log_tlvs: Vec<u8>,
}

/// Bounds on connections that have not sent a complete header yet.
#[derive(Clone, Copy, Debug)]
pub struct HeaderLimits {
    /// From accept to the complete header, whatever arrives in between.
    pub timeout: Duration,
    /// The largest header taken, in octets.
    pub max_len: usize,
    /// Connections of one peer without a header, over all loops.
    pub pending_per_peer: usize,
    /// Connections without a header, over all loops.
    pub pending: usize,
}

impl Default for HeaderLimits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            max_len: 4096,
            pending_per_peer: 1024,
            pending: 8192,
        }
    }
}

impl HeaderLimits {
    /// Whether a header, complete and valid, is one to work with.
    ///
    /// # Errors
    ///
    /// [`Failure::HeaderTooLong`], [`Failure::TooManyTlvs`].
    pub(crate) fn admit(&self, header: &Header<'_>) -> Result<(), Failure> {
        let (len, max) = (header.len, self.max_len);
        if len > max {
            return Err(Failure::HeaderTooLong { len, max });
        }
        // A proxy of this kind may have added its count to as many as it was given.
        let counted = header
            .tlvs
            .iter()
            .take(MOST_TLVS + 1)
            .any(preface::is_count);
        if header
            .tlvs
            .iter()
            .nth(MOST_TLVS + usize::from(counted))
            .is_some()
        {
            return Err(Failure::TooManyTlvs { max: MOST_TLVS });
        }
        Ok(())
    }
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
    /// The target of those who came to this listener.
    pub fn of(self, listener: LocalAddr) -> Target {
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

/// The specification names a dozen and vendors add one or two. Whatever is done for each TLV is done at
/// most so often for a connection or a datagram (and once for our own), even where `--max-header` lets 21,000 empty ones in.
const MOST_TLVS: usize = 64;
