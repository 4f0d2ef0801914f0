//! Local routes for every destination, and route lookups.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;

use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};

use super::handle::{Family, LOOPBACK, Netlink, collect_dump, is_family_disabled, with_call};
use crate::{Result, SyscallError, Transport};

/// A route that makes every address local in its table: `local 0.0.0.0/0 dev lo` or `local ::/0 dev lo`.
///
/// Displayed in the syntax of `ip route`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocalRoute {
    /// The address family.
    pub family: Family,
    /// The routing table that it is in.
    pub table: u32,
    /// The origin of the route (`rtm_protocol`).
    pub protocol: u8,
}

impl fmt::Display for LocalRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let everything = match self.family {
            Family::V4 => "0.0.0.0/0",
            Family::V6 => "::/0",
        };
        let Self {
            table, protocol, ..
        } = self;
        write!(
            f,
            "local {everything} dev lo table {table} proto {protocol}"
        )
    }
}

/// A network with all its addresses local (`ip route add local 198.51.100.0/24 dev lo`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocalNetwork {
    /// The first address.
    pub address: IpAddr,
    /// Length of the prefix, in bits.
    pub prefix_len: u8,
}

impl Netlink {
    /// The local routes of the kernel's table `local` (255), of both families: the addresses of
    /// interfaces that are up, loopback, and whatever an administrator or a cloud's agent has added.
    /// Needs no capability.
    ///
    /// Other tables are left out: they apply only to packets that a rule sends there, and those of [`LocalRoute`] make all
    /// addresses local.
    pub async fn local_networks(&self) -> Result<Vec<LocalNetwork>> {
        let mut found = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut wanted = RouteMessage::default();
            wanted.header.address_family = family;
            wanted.header.table = libc::RT_TABLE_LOCAL;
            wanted.header.kind = RouteType::Local;
            let dump = self.handle.route().get(wanted).execute();
            match collect_dump(dump, "RTM_GETROUTE").await {
                Ok(messages) => found.extend(messages.iter().filter_map(local_network)),
                // The table does not exist yet.
                Err(error) if error.errno() == Some(libc::ENOENT) => {}
                Err(error) if is_family_disabled(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// The local default routes with this protocol number, of both families.
    pub async fn local_routes(&self, protocol: u8) -> Result<Vec<LocalRoute>> {
        let mut found = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut wanted = RouteMessage::default();
            wanted.header.address_family = family;
            wanted.header.protocol = RouteProtocol::from(protocol);
            let dump = self.handle.route().get(wanted).execute();
            let messages = collect_dump(dump, "RTM_GETROUTE").await?;
            found.extend(
                messages
                    .iter()
                    // Without IPv6 the kernel answers a request for its routes with those of IPv4.
                    .filter(|message| message.header.address_family == family)
                    .filter_map(from_message),
            );
        }
        // A kernel without strict checking ignores the protocol of the request.
        found.retain(|route| route.protocol == protocol);
        Ok(found)
    }

    /// Adds the route.
    ///
    /// # Errors
    ///
    /// EEXIST when the table has a default route already (NLM_F_EXCL); EPERM without CAP_NET_ADMIN;
    /// [`is_family_disabled`].
    pub async fn add_local_route(&self, route: &LocalRoute) -> Result<()> {
        let request = self.handle.route().add(to_message(route));
        with_call(request.execute().await, "RTM_NEWROUTE")
    }

    /// Deletes the route.
    ///
    /// # Errors
    ///
    /// ESRCH when it does not exist; EPERM without CAP_NET_ADMIN.
    pub async fn delete_local_route(&self, route: &LocalRoute) -> Result<()> {
        let request = self.handle.route().del(to_message(route));
        with_call(request.execute().await, "RTM_DELROUTE")
    }

    /// Whether `address` is local: by the routing tables (`ip route get`), or on an
    /// interface. A new IPv6 address has no route until duplicate address detection is complete.
    pub async fn is_local_address(&self, address: IpAddr) -> Result<bool> {
        if self
            .is_local(route_request(address))
            .await
            .or_else(not_local_if_blackhole)?
        {
            return Ok(true);
        }
        let addresses = self.addresses().await?;
        Ok(addresses.iter().any(|interface| interface.own == address))
    }

    /// Whether a packet to `to` with this firewall mark would be delivered locally.
    pub async fn is_mark_delivered_locally(&self, to: IpAddr, mark: u32) -> Result<bool> {
        let mut request = route_request(to);
        request.attributes.push(RouteAttribute::Mark(mark));
        self.is_local(request).await.or_else(not_local_if_blackhole)
    }

    /// Whether a packet of this protocol from `from`, an address of this host, to `to` would be delivered locally. `mark` is
    /// the packet's firewall mark.
    ///
    /// The lookup is that of a packet of this host, so rules with `iif lo` apply. Source port and
    /// protocol are part of it since Linux 4.18.
    ///
    /// # Errors
    ///
    /// EINVAL when `from` is not an address of this host.
    pub async fn is_delivered_locally(
        &self,
        transport: Transport,
        from: SocketAddr,
        to: IpAddr,
        mark: Option<NonZeroU32>,
    ) -> Result<bool> {
        let mut request = route_request(to);
        request.header.source_prefix_length = prefix_bits(from.ip());
        request.attributes.extend([
            RouteAttribute::Source(from.ip().into()),
            RouteAttribute::IpProto(match transport {
                Transport::Tcp => libc::IPPROTO_TCP as u8,
                Transport::Udp => libc::IPPROTO_UDP as u8,
            }),
            RouteAttribute::Sport(from.port()),
        ]);
        request
            .attributes
            .extend(mark.map(|mark| RouteAttribute::Mark(mark.get())));
        match self.is_local(request).await {
            // The source is an address of this host, so EINVAL means that the route is a blackhole, or leads from a loopback
            // address to another interface, which the kernel refuses.
            Err(error)
                if error.errno() == Some(libc::EINVAL)
                    && (from.ip().is_loopback() || self.is_local_address(from.ip()).await?) =>
            {
                Ok(false)
            }
            answer => answer,
        }
    }

    /// Whether the route that the kernel selects for the request is local.
    ///
    /// # Errors
    ///
    /// EINVAL for a blackhole route, and for a source that is not an address of this host or not of the route's interface.
    async fn is_local(&self, request: RouteMessage) -> Result<bool> {
        let answers =
            collect_dump(self.handle.route().get(request).execute(), "RTM_GETROUTE").await;
        answers
            .map(|routes| routes.first().is_some_and(is_local_route))
            .or_else(not_local_if_unreachable)
    }
}

/// The request for the route to an address (`ip route get`).
pub(super) fn route_request(to: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = match to {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.header.destination_prefix_length = prefix_bits(to);
    message.attributes = vec![RouteAttribute::Destination(to.into())];
    message
}

pub(super) fn is_local_route(route: &RouteMessage) -> bool {
    route.header.kind == RouteType::Local
}

/// Turns the errors for which there is no route, or one of the type unreachable or prohibit, into "not local".
pub(super) fn not_local_if_unreachable(error: SyscallError) -> Result<bool> {
    match error.errno() {
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Turns EINVAL into "not local": for a request without a source, it means that the type of the route is blackhole.
pub(super) fn not_local_if_blackhole(error: SyscallError) -> Result<bool> {
    match error.errno() {
        Some(libc::EINVAL) => Ok(false),
        _ => Err(error),
    }
}

/// The length of the prefix that is a single address.
pub(super) fn prefix_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn to_message(route: &LocalRoute) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = match route.family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    message.header.kind = RouteType::Local;
    // The only scope IPv4 takes for a local route; IPv6 has no scopes.
    message.header.scope = RouteScope::Host;
    message.header.protocol = RouteProtocol::from(route.protocol);
    message.attributes = vec![
        RouteAttribute::Oif(LOOPBACK),
        RouteAttribute::Table(route.table),
    ];
    message
}

/// `None` for a route that is not `local`, or is in another table than `local`.
pub(super) fn local_network(message: &RouteMessage) -> Option<LocalNetwork> {
    let header = &message.header;
    let is_in_table_local = header.kind == RouteType::Local && header.table == libc::RT_TABLE_LOCAL;
    let address = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
            RouteAttribute::Destination(RouteAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
            _ => None,
        });
    // A default route has no destination.
    let address = address.unwrap_or_else(|| match header.address_family {
        AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    });
    is_in_table_local.then_some(LocalNetwork {
        address,
        prefix_len: header.destination_prefix_length,
    })
}

/// `None` for a route that is not `local default`.
pub(super) fn from_message(message: &RouteMessage) -> Option<LocalRoute> {
    let header = &message.header;
    let is_local_default = header.kind == RouteType::Local && header.destination_prefix_length == 0;
    let table = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Table(table) => Some(*table),
            _ => None,
        })?;
    is_local_default.then_some(LocalRoute {
        family: match header.address_family {
            AddressFamily::Inet6 => Family::V6,
            _ => Family::V4,
        },
        table,
        protocol: RouteProtocol::into(header.protocol),
    })
}
