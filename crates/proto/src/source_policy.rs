//! The source policy: which claimed clients a receiver of headers believes.
//!
//! A program that trusts its own host must not be told that a remote client is local, and an address that no host has is
//! no client's. Both are recognised in every encoding ([`meanings`]).
//!
//! That bind(2) succeeds does not mean that the address is used: the kernel lets a transparent socket bind to 0.0.0.0, a
//! broadcast or a multicast address, then picks a source itself, and the backend sees 127.0.0.1. An IPv4 link-local
//! address needs no interface to be bound, and is believed.

use core::net::IpAddr;

use crate::special::{Special, meanings, special};

/// How claims of special addresses, and of addresses of this host, are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePolicy {
    /// Refuses them: a program that trusts localhost must not be told that a remote client is local.
    #[default]
    Strict,
    /// Believes loopback and this host's own addresses, for set-ups with clients that really are on this host. Addresses
    /// that no host has are refused.
    AllowLocal,
    /// As `Strict`, but believes addresses of 240.0.0.0/4, which some clouds give to pods.
    AllowReserved,
    /// Believes every claim, as libproxyproto does.
    Any,
}

/// What an address is to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostAddress {
    /// An interface has the address, or a route makes it local.
    Own,
    /// The first or last address of a network that an interface is in: no single host's.
    NetworkOrBroadcast,
}

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

impl SourcePolicy {
    /// Decides on a claimed address, in every meaning that its encoding has. `on_this_host` looks up what an address is
    /// to this host.
    ///
    /// # Errors
    ///
    /// [`SourceRefusal`]: why the address, or an address embedded in it, is refused.
    pub fn admit(
        self,
        claimed: IpAddr,
        on_this_host: impl Fn(IpAddr) -> Option<HostAddress>,
    ) -> Result<(), SourceRefusal> {
        meanings(claimed).try_for_each(|ip| self.admit_meaning(ip, on_this_host(ip)))
    }

    fn admit_meaning(self, ip: IpAddr, host: Option<HostAddress>) -> Result<(), SourceRefusal> {
        let refusal = match (special(ip), host) {
            (Some(Special::Reserved), None) if self == Self::AllowReserved => return Ok(()),
            (Some(Special::Unspecified), _) => SourceRefusal::Unspecified,
            (Some(Special::Multicast), _) => SourceRefusal::Multicast,
            (Some(Special::Reserved), _) => SourceRefusal::Reserved,
            (Some(Special::LinkLocal), _) if ip.is_ipv6() => SourceRefusal::LinkLocal,
            (Some(Special::Broadcast), _) | (_, Some(HostAddress::NetworkOrBroadcast)) => {
                SourceRefusal::Broadcast
            }
            (Some(Special::Loopback), _) => SourceRefusal::Loopback,
            (_, Some(HostAddress::Own)) => SourceRefusal::Own,
            (_, None) => return Ok(()),
        };
        let is_local = matches!(refusal, SourceRefusal::Loopback | SourceRefusal::Own);
        match self {
            Self::Any => Ok(()),
            Self::AllowLocal if is_local => Ok(()),
            Self::Strict | Self::AllowLocal | Self::AllowReserved => Err(refusal),
        }
    }
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
        policy.admit(ip.parse().unwrap(), host)
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

    #[test]
    fn reserved_addresses_are_admitted_on_request() {
        let admit =
            |ip: &str, host| SourcePolicy::AllowReserved.admit(ip.parse().unwrap(), |_| host);
        assert_eq!(admit("240.10.0.7", None), Ok(()));
        assert_eq!(admit("192.0.2.1", None), Ok(()));
        let own = admit("240.10.0.7", Some(HostAddress::Own));
        assert!(own.is_err(), "an address of this host");
        for ip in [
            "127.0.0.1",
            "255.255.255.255",
            "224.0.0.1",
            "0.0.0.0",
            "fe80::1",
        ] {
            assert!(admit(ip, None).is_err(), "{ip}");
        }
    }

    #[test]
    fn local_addresses_and_those_of_no_host() {
        use SourcePolicy::*;
        let admits = |policy: SourcePolicy, ip: &str| {
            let ip: IpAddr = ip.parse().unwrap();
            policy.admit(ip, |_| None).is_ok()
        };
        for policy in [Strict, AllowLocal, Any] {
            for ip in ["192.0.2.1", "10.0.0.1", "2001:db8::1", "::ffff:192.0.2.1"] {
                assert!(admits(policy, ip), "{policy:?} {ip}");
            }
            for ip in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "2002:7f00:1::"] {
                assert_eq!(admits(policy, ip), policy != Strict, "{policy:?} {ip}");
            }
            for ip in [
                "0.0.0.0",
                "255.255.255.255",
                "224.0.0.1",
                "240.0.0.1",
                "::",
                "ff02::1",
            ] {
                assert_eq!(admits(policy, ip), policy == Any, "{policy:?} {ip}");
            }
        }
    }
}
