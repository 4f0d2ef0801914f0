//! The source policy: which claimed clients a receiver of headers believes.
//!
//! A program that trusts its own host must not be told that a remote client is local, and no client can have an address that
//! no host has. Both kinds of address are recognised in every encoding ([`meanings`]).
//!
//! A successful bind(2) does not prove that the address is used: the kernel lets a transparent socket bind to 0.0.0.0, a
//! broadcast or a multicast address, then picks a source itself, and the backend sees 127.0.0.1. An IPv4 link-local
//! address needs no interface to be bound, and is believed.

use core::net::{IpAddr, SocketAddr};

use crate::special::{Special, canonical, meanings, special};

/// The treatment of claims of special addresses, and of addresses of this host. The numbers are those of
/// [`SourcePolicy::to_word`], and stay: a process of another release may read the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePolicy {
    /// Refuses all of them.
    #[default]
    Strict = 0,
    /// Believes loopback and this host's own addresses, for set-ups with clients that really are on this host. Addresses
    /// that no host has are refused.
    AllowLocal = 1,
    /// As `Strict`, but believes addresses of 240.0.0.0/4, which some clouds give to pods.
    AllowReserved = 3,
    /// Believes every claim, as libproxyproto does.
    Any = 2,
}

/// The role of an address on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostAddress {
    /// An interface has the address, or a route makes it local.
    Own,
    /// The first or last address of a network that an interface is in: no single host's.
    NetworkOrBroadcast,
}

/// The reason to refuse a claimed source.
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
    /// All policies.
    pub const ALL: [Self; 4] = [
        Self::Strict,
        Self::AllowLocal,
        Self::AllowReserved,
        Self::Any,
    ];

    /// The name on the command line and in the configuration file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::AllowLocal => "allow-local",
            Self::AllowReserved => "allow-reserved",
            Self::Any => "any",
        }
    }

    /// One line of help.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Strict => {
                "Refuse special and loopback addresses, and (`proxy` only) this host's own"
            }
            Self::AllowLocal => "Refuse special addresses only",
            Self::AllowReserved => "As `strict`, but accept 240.0.0.0/4",
            Self::Any => "Believe every claim",
        }
    }

    /// Encodes the policy for another process.
    pub const fn to_word(self) -> u64 {
        self as u64
    }

    /// Decodes a word of [`SourcePolicy::to_word`]. Any other word is [`SourcePolicy::Strict`].
    pub fn from_word(word: u64) -> Self {
        Self::ALL
            .into_iter()
            .find(|policy| policy.to_word() == word)
            .unwrap_or(Self::Strict)
    }

    /// Decides on a claimed address and on the IPv4 address embedded in it; the policy must believe both. `role_on_host` looks
    /// up the role of an address on this host.
    pub fn admit(
        self,
        claimed: IpAddr,
        role_on_host: impl Fn(IpAddr) -> Option<HostAddress>,
    ) -> Result<(), SourceRefusal> {
        meanings(claimed).try_for_each(|ip| self.admit_meaning(ip, role_on_host(ip)))
    }

    /// Decides on the source that a header of `peer` claims, as [`Self::admit`] does on its address. Returns `None` if it is the
    /// peer's own end of the connection and the policy refuses it as an address of this host: a balancer on this host claims it
    /// for its health checks with version 1, which has no LOCAL.
    pub fn admit_claim(
        self,
        claim: SocketAddr,
        peer: SocketAddr,
        role_on_host: impl Fn(IpAddr) -> Option<HostAddress>,
    ) -> Result<Option<SocketAddr>, SourceRefusal> {
        match self.admit(claim.ip(), role_on_host) {
            Ok(()) => Ok(Some(claim)),
            Err(SourceRefusal::Loopback | SourceRefusal::Own)
                if canonical(claim) == canonical(peer) =>
            {
                Ok(None)
            }
            Err(refusal) => Err(refusal),
        }
    }

    fn admit_meaning(self, ip: IpAddr, role: Option<HostAddress>) -> Result<(), SourceRefusal> {
        let refusal = match (special(ip), role) {
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
            // Without a wildcard: a new purpose has to be decided about.
            (
                None
                | Some(
                    Special::LinkLocal | Special::Metadata | Special::Private | Special::NotPublic,
                ),
                None,
            ) => return Ok(()),
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

    #[test]
    fn policies_are_read_as_they_were_written_and_other_words_as_strict() {
        for policy in SourcePolicy::ALL {
            assert_eq!(SourcePolicy::from_word(policy.to_word()), policy);
        }
        for word in [0, SourcePolicy::ALL.len() as u64, u64::MAX] {
            assert_eq!(SourcePolicy::from_word(word), SourcePolicy::Strict);
        }
    }

    /// The verdicts on all other addresses are in `tests/address_policy/verdicts.txt`.
    #[test]
    fn reserved_own_address_is_refused() {
        let verdict = SourcePolicy::AllowReserved
            .admit("240.10.0.7".parse().unwrap(), |_| Some(HostAddress::Own));
        assert_eq!(verdict, Err(SourceRefusal::Reserved));
    }

    fn admit_claim(
        policy: SourcePolicy,
        claim: &str,
        peer: &str,
        role: Option<HostAddress>,
    ) -> Result<bool, SourceRefusal> {
        let (claim, peer) = (claim.parse().unwrap(), peer.parse().unwrap());
        let source = policy.admit_claim(claim, peer, |_| role)?;
        assert!(source.is_none_or(|source| source == claim));
        Ok(source.is_some())
    }

    #[test]
    fn balancers_own_end_is_no_client() {
        let own = Some(HostAddress::Own);
        let strict = |claim, peer, role| admit_claim(SourcePolicy::Strict, claim, peer, role);
        assert_eq!(strict("127.0.0.1:5", "127.0.0.1:5", None), Ok(false));
        let mapped = "[::ffff:127.0.0.1]:5";
        assert_eq!(strict("127.0.0.1:5", mapped, None), Ok(false));
        assert_eq!(strict(mapped, "127.0.0.1:5", None), Ok(false));
        assert_eq!(strict("192.0.2.1:5", "192.0.2.1:5", own), Ok(false));
        // Not recognized as an address of this host, or believed as a client.
        assert_eq!(strict("192.0.2.1:5", "192.0.2.1:5", None), Ok(true));
        let lenient = admit_claim(SourcePolicy::AllowLocal, "127.0.0.1:5", "127.0.0.1:5", None);
        assert_eq!(lenient, Ok(true));
    }

    #[test]
    fn only_the_balancers_own_end_is_excepted() {
        let own = Some(HostAddress::Own);
        let strict = |claim, peer, role| admit_claim(SourcePolicy::Strict, claim, peer, role);
        let loopback = Err(SourceRefusal::Loopback);
        assert_eq!(strict("127.0.0.1:6", "127.0.0.1:5", None), loopback);
        assert_eq!(strict("127.0.0.1:5", "192.0.2.1:5", None), loopback);
        let other_port = strict("192.0.2.1:6", "192.0.2.1:5", own);
        assert_eq!(other_port, Err(SourceRefusal::Own));
        let no_host = strict("0.0.0.0:5", "0.0.0.0:5", None);
        assert_eq!(no_host, Err(SourceRefusal::Unspecified));
    }
}
