//! The policy for destinations, which decides on the address that will be connected to.
//!
//! The name alone can't decide: its owner chooses what it resolves to. So a destination is admitted after resolution, and
//! the connection is made to exactly the address that was admitted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use peername_proto::HostAddress;
use peername_proto::{Special, meanings, special};
use peername_server::destination_list::AllowedDestination;
use peername_server::metadata_service::is_metadata;
use peername_server::own_addresses::OwnAddresses;

/// The destination policy of this process.
#[derive(Debug)]
pub struct Destinations {
    /// Destinations that are allowed beyond ports 80 and 443 of public addresses (`--allow-destination`).
    pub allowed: Vec<AllowedDestination>,
    /// Ports of public addresses that are allowed beside 80 and 443.
    pub ports: Vec<u16>,
    /// This host's addresses.
    pub own: OwnAddresses,
    /// The ports on which this process listens.
    pub listening: Vec<u16>,
}

/// Why a destination is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestinationDenied {
    /// A listener of this process.
    #[error("a listener of this proxy itself: the request would loop")]
    OwnListener,
    /// Multicast, broadcast, unspecified or reserved: no server has such an address.
    #[error("no address of a server")]
    NotAServer,
    /// A cloud's metadata service, which gives secrets to any request from this host.
    #[error("a cloud's metadata service")]
    Metadata,
    /// This host.
    #[error("this host itself")]
    ThisHost,
    /// A network that is not public: private, shared, link-local, unique local, for documentation and tests.
    #[error("not a public address")]
    NotPublic,
    /// A port other than 80, 443 and those of [`Destinations::ports`].
    #[error("a port other than 80 and 443")]
    Port,
}

impl DestinationDenied {
    /// A stable code for logs and responses.
    pub fn code(self) -> &'static str {
        match self {
            Self::OwnListener => "destination_loop",
            Self::NotAServer => "destination_not_a_server",
            Self::Metadata => "destination_metadata",
            Self::ThisHost => "destination_this_host",
            Self::NotPublic => "destination_not_public",
            Self::Port => "destination_port",
        }
    }
}

impl Destinations {
    /// Decides on an address, an IPv4 address inside an IPv6 one included.
    ///
    /// # Errors
    ///
    /// [`DestinationDenied`]: the reason.
    pub fn admit(&self, asked: SocketAddr) -> Result<(), DestinationDenied> {
        let (ip, port) = (asked.ip().to_canonical(), asked.port());
        meanings(ip).try_for_each(|ip| self.deny_always(ip, port))?;
        let mut covering = self.allowed.iter().filter(|entry| entry.covers(ip, port));
        if meanings(ip).any(is_metadata) {
            let is_literal = covering.any(|entry| entry.is_exactly(ip));
            return is_literal.then_some(()).ok_or(DestinationDenied::Metadata);
        }
        // A wide network that happens to include loopback does not allow it.
        let is_loopback = meanings(ip).any(|ip| ip.is_loopback());
        if covering.any(|entry| !is_loopback || entry.is_exactly(ip) || entry.is_loopback()) {
            return Ok(());
        }
        meanings(ip).try_for_each(|ip| self.deny_unless_listed(ip))?;
        match port {
            80 | 443 => Ok(()),
            other if self.ports.contains(&other) => Ok(()),
            _ => Err(DestinationDenied::Port),
        }
    }

    /// Denies what no entry of `allowed` can allow.
    fn deny_always(&self, ip: IpAddr, port: u16) -> Result<(), DestinationDenied> {
        let kind = self.own.kind_of(ip);
        if (kind == Some(HostAddress::Own) || ip.is_loopback()) && self.listening.contains(&port) {
            return Err(DestinationDenied::OwnListener);
        }
        let is_no_server = matches!(
            special(ip),
            Some(
                Special::Unspecified | Special::Broadcast | Special::Multicast | Special::Reserved
            )
        );
        match is_no_server || kind == Some(HostAddress::NetworkOrBroadcast) || port == 0 {
            true => Err(DestinationDenied::NotAServer),
            false => Ok(()),
        }
    }

    /// Denies what only an entry of `allowed` can allow.
    fn deny_unless_listed(&self, ip: IpAddr) -> Result<(), DestinationDenied> {
        if is_metadata(ip) {
            return Err(DestinationDenied::Metadata);
        }
        if ip.is_loopback() || self.own.kind_of(ip).is_some() {
            return Err(DestinationDenied::ThisHost);
        }
        match NOT_PUBLIC.iter().any(|network| network.contains(&ip)) {
            true => Err(DestinationDenied::NotPublic),
            false => Ok(()),
        }
    }
}

const fn v4(a: u8, b: u8, c: u8, prefix: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, 0), prefix))
}

const fn v6(a: u16, b: u16, prefix: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0),
        prefix,
    ))
}

/// Networks that the IANA registries of special-purpose addresses (RFC 6890, as of 2025) call not globally reachable,
/// beside those that [`special`] knows and those with an embedded IPv4 address.
const NOT_PUBLIC: &[IpNet] = &[
    v4(10, 0, 0, 8),
    v4(100, 64, 0, 10),
    v4(169, 254, 0, 16),
    v4(172, 16, 0, 12),
    v4(192, 0, 0, 24),
    v4(192, 0, 2, 24),
    v4(192, 168, 0, 16),
    v4(198, 18, 0, 15),
    v4(198, 51, 100, 24),
    v4(203, 0, 113, 24),
    // Local NAT64 (RFC 8215), discard-only, benchmarking, documentation, segment routing.
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0),
        48,
    )),
    v6(0x100, 0, 63),
    v6(0x2001, 2, 48),
    v6(0x2001, 0xdb8, 32),
    v6(0x3fff, 0, 20),
    v6(0x5f00, 0, 16),
    v6(0xfc00, 0, 7),
    v6(0xfe80, 0, 10),
    // Site-local, deprecated (RFC 3879) but still routed somewhere.
    v6(0xfec0, 0, 10),
];
