//! The source policy: which claimed clients a receiver of headers believes.
//!
//! A program that trusts its own host must not be told that a remote client is local, and an address that no host has is
//! no client's. Both are recognised in every encoding ([`meanings`]).

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InadmissibleSource {
    /// The address is special on every host.
    Special(Special),
    /// It is this host's, and the policy is strict.
    OwnAddress,
    /// See [`HostAddress::NetworkOrBroadcast`].
    NetworkOrBroadcast,
}

impl SourcePolicy {
    /// Decides on a claimed address. `on_this_host` tells what an address is to this host.
    ///
    /// # Errors
    ///
    /// [`InadmissibleSource`]: why the address, or an address embedded in it, is refused.
    pub fn admit(
        self,
        claimed: IpAddr,
        on_this_host: impl Fn(IpAddr) -> Option<HostAddress>,
    ) -> Result<(), InadmissibleSource> {
        meanings(claimed).try_for_each(|ip| self.admit_meaning(ip, on_this_host(ip)))
    }

    fn admit_meaning(
        self,
        ip: IpAddr,
        host: Option<HostAddress>,
    ) -> Result<(), InadmissibleSource> {
        match (self, special(ip), host) {
            (Self::Any, ..) => Ok(()),
            (Self::AllowReserved, Some(Special::Reserved), None) => Ok(()),
            (_, Some(refused), _) if refused != Special::Loopback => {
                Err(InadmissibleSource::Special(refused))
            }
            (_, _, Some(HostAddress::NetworkOrBroadcast)) => {
                Err(InadmissibleSource::NetworkOrBroadcast)
            }
            (Self::AllowLocal, ..) => Ok(()),
            (Self::Strict | Self::AllowReserved, Some(loopback), _) => {
                Err(InadmissibleSource::Special(loopback))
            }
            (Self::Strict | Self::AllowReserved, None, Some(HostAddress::Own)) => {
                Err(InadmissibleSource::OwnAddress)
            }
            (Self::Strict | Self::AllowReserved, None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
