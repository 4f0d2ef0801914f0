//! The policy for destinations, which decides on the address that will be connected to.
//!
//! The name alone can't decide: its owner chooses what it resolves to. So a destination is admitted after resolution, and
//! the connection is made to exactly the address that was admitted.

use std::net::{IpAddr, SocketAddr};

use peername_proto::{HostAddress, Special, meanings, special};
use peername_server::destination_list::DestinationList;
use peername_server::own_addresses::OwnAddresses;

/// The destination policy of this process.
#[derive(Debug)]
pub struct Destinations {
    /// Destinations that are allowed beyond ports 80 and 443 of public addresses (`--allow-destination`).
    pub allowed: DestinationList,
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
            Self::OwnListener => "destination_own_listener",
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
        if self.allowed.allows(ip, port) {
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
        match special(ip) {
            Some(Special::Metadata) => Err(DestinationDenied::Metadata),
            Some(Special::Loopback) => Err(DestinationDenied::ThisHost),
            _ if self.own.kind_of(ip).is_some() => Err(DestinationDenied::ThisHost),
            Some(_) => Err(DestinationDenied::NotPublic),
            None => Ok(()),
        }
    }
}
