//! The source policy: which claimed sources may become the source of a connection (be spoofed).
//!
//! bind(2) succeeding does not mean that the address is used: the kernel lets a transparent socket bind to 0.0.0.0, a
//! broadcast or a multicast address, then picks a source itself, and the backend sees 127.0.0.1. So such addresses are
//! refused in every encoding, and [`crate::connect`] still compares the socket's address with the requested one.

use std::net::IpAddr;

use peername_proto::{HostAddress, InadmissibleSource, Special};

pub use peername_proto::SourcePolicy;

/// Why a claimed source is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SourceRefusal {
    /// 0.0.0.0/8 or `::`, which no host has.
    #[error("an unspecified address")]
    Unspecified,
    /// Loopback, and the policy is strict.
    #[error("a loopback address")]
    Loopback,
    /// An address of this host, and the policy is strict.
    #[error("an address of this host")]
    Own,
    /// The broadcast or network address of one of this host's networks, or 255.255.255.255.
    #[error("a broadcast address")]
    Broadcast,
    /// 224.0.0.0/4 or ff00::/8.
    #[error("a multicast address")]
    Multicast,
    /// 240.0.0.0/4.
    #[error("a reserved address")]
    Reserved,
    /// Port 0, where the header also chooses the destination.
    #[error("port 0, with which a connection to the header's destination could loop")]
    NoPort,
    /// fe80::/10: ambiguous without its interface, which a header can't name.
    #[error("a link-local address without its interface")]
    LinkLocal,
}

impl SourceRefusal {
    /// The stable reason code for metrics and logs.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Unspecified => "source_unspecified",
            Self::Loopback => "source_loopback",
            Self::Own => "source_own_address",
            Self::Broadcast => "source_broadcast",
            Self::Multicast => "source_multicast",
            Self::Reserved => "source_reserved",
            Self::LinkLocal => "source_link_local",
            Self::NoPort => "source_port_0",
        }
    }
}

impl From<Special> for SourceRefusal {
    fn from(special: Special) -> Self {
        match special {
            Special::Unspecified => Self::Unspecified,
            Special::Loopback => Self::Loopback,
            Special::Broadcast => Self::Broadcast,
            Special::Multicast => Self::Multicast,
            Special::Reserved => Self::Reserved,
            Special::LinkLocal => Self::LinkLocal,
        }
    }
}

impl From<InadmissibleSource> for SourceRefusal {
    fn from(source: InadmissibleSource) -> Self {
        match source {
            InadmissibleSource::Special(special) => special.into(),
            InadmissibleSource::OwnAddress => Self::Own,
            InadmissibleSource::NetworkOrBroadcast => Self::Broadcast,
        }
    }
}

/// Decides about a claimed address, in every meaning that its encoding has. `kind_of` looks up whether an address is
/// special on this host.
///
/// # Errors
///
/// [`SourceRefusal`] names the kind of address.
pub(crate) fn admit(
    policy: SourcePolicy,
    claimed: IpAddr,
    kind_of: impl Fn(IpAddr) -> Option<HostAddress>,
) -> Result<(), SourceRefusal> {
    Ok(policy.admit(claimed, kind_of)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(ip: IpAddr) -> Option<HostAddress> {
        match ip.to_string().as_str() {
            "10.0.0.1" | "2001:db8::1" => Some(HostAddress::Own),
            "10.0.0.0" | "10.0.0.255" => Some(HostAddress::NetworkOrBroadcast),
            _ => None,
        }
    }

    fn admit(policy: SourcePolicy, ip: &str) -> Result<(), SourceRefusal> {
        super::admit(policy, ip.parse().unwrap(), host)
    }

    #[test]
    fn special_ranges_are_refused_in_every_encoding() {
        use SourceRefusal::*;
        let table = [
            ("0.0.0.0", Unspecified),
            ("0.1.2.3", Unspecified),
            ("255.255.255.255", Broadcast),
            ("127.255.255.255", Broadcast),
            ("10.0.0.255", Broadcast),
            ("10.0.0.0", Broadcast),
            ("224.0.0.1", Multicast),
            ("239.255.255.250", Multicast),
            ("240.0.0.1", Reserved),
            ("127.0.0.1", Loopback),
            ("127.8.9.10", Loopback),
            ("10.0.0.1", Own),
            ("::", Unspecified),
            ("::1", Loopback),
            ("ff02::1", Multicast),
            ("fe80::1", LinkLocal),
            ("febf::1", LinkLocal),
            ("2001:db8::1", Own),
            ("::ffff:127.0.0.1", Loopback),
            ("::ffff:0.0.0.0", Unspecified),
            ("::ffff:255.255.255.255", Broadcast),
            ("::ffff:10.0.0.1", Own),
            ("::127.0.0.1", Loopback),
            ("::224.0.0.1", Multicast),
            ("64:ff9b::127.0.0.1", Loopback),
            ("64:ff9b::10.0.0.1", Own),
            ("64:ff9b:1::7f00:1", Loopback),
            ("2002:7f00:1::", Loopback),
            ("2002:e000:1::5", Multicast),
            ("2001:db8:1::5efe:7f00:1", Loopback),
            ("2001:db8:1::200:5efe:a00:1", Own),
        ];
        for (ip, why) in table {
            assert_eq!(admit(SourcePolicy::Strict, ip), Err(why), "{ip}");
        }
    }

    #[test]
    fn allow_local_admits_only_local_addresses() {
        for ip in [
            "127.0.0.1",
            "::1",
            "10.0.0.1",
            "2001:db8::1",
            "::ffff:127.0.0.1",
        ] {
            assert_eq!(admit(SourcePolicy::AllowLocal, ip), Ok(()), "{ip}");
        }
        for ip in [
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "10.0.0.255",
            "::",
            "fe80::1",
            "127.0.0.0",
        ] {
            assert!(admit(SourcePolicy::AllowLocal, ip).is_err(), "{ip}");
        }
    }

    #[test]
    fn ordinary_sources_are_admitted() {
        for ip in [
            "192.0.2.1",
            "10.0.0.2",
            "169.254.1.1",
            "2001:db8::2",
            "64:ff9b::c000:201",
            "::ffff:192.0.2.1",
        ] {
            assert_eq!(admit(SourcePolicy::Strict, ip), Ok(()), "{ip}");
        }
    }
}
