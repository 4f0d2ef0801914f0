//! Which claimed sources may become the source of a connection.
//!
//! A bound socket does not mean a kept address: the kernel lets a transparent socket bind to
//! 0.0.0.0, a broadcast or a multicast address, then picks a source itself, and the backend sees
//! 127.0.0.1. So such addresses are refused in every encoding, and [`crate::connect`] still compares
//! what the socket got with what was asked for.

use std::net::IpAddr;

use peername_proto::{Special, meanings, special};

use peername_server::own_addresses::LocalKind;

/// How claims of addresses of this host are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePolicy {
    /// Refused: a backend that trusts localhost must not be told that a remote client is local.
    #[default]
    Strict,
    /// Let through as what they claim, for set-ups whose clients really are on this host.
    AllowLocal,
}

/// Why a claimed source is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// 0.0.0.0/8 or `::`: no host has it.
    #[error("an unspecified address")]
    Unspecified,
    /// Loopback, and the policy is strict.
    #[error("a loopback address; --source-policy allow-local lets it through")]
    Loopback,
    /// An address of this host, and the policy is strict.
    #[error("an address of this host; --source-policy allow-local lets it through")]
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
    /// Port 0: no client has it.
    #[error("port 0")]
    NoPort,
    /// fe80::/10: means nothing without the interface it belongs to.
    #[error("a link-local address without its interface")]
    LinkLocal,
}

impl Refused {
    /// A stable name for metrics.
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

impl From<Special> for Refused {
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

impl SourcePolicy {
    /// Decides on a claimed address, in whatever encoding it came. `own` tells what an address is to
    /// this host.
    ///
    /// # Errors
    ///
    /// [`Refused`] says which kind of address it is.
    pub fn admit(
        self,
        claimed: IpAddr,
        own: impl Fn(IpAddr) -> Option<LocalKind>,
    ) -> Result<(), Refused> {
        meanings(claimed).try_for_each(|ip| self.admit_one(ip, &own))
    }

    fn admit_one(
        self,
        ip: IpAddr,
        own: impl Fn(IpAddr) -> Option<LocalKind>,
    ) -> Result<(), Refused> {
        let special = special(ip).map(Refused::from);
        match (self, special, own(ip)) {
            (_, Some(refused), _) if refused != Refused::Loopback => Err(refused),
            (_, _, Some(LocalKind::NetworkOrBroadcast)) => Err(Refused::Broadcast),
            (Self::AllowLocal, ..) => Ok(()),
            (Self::Strict, Some(loopback), _) => Err(loopback),
            (Self::Strict, None, Some(LocalKind::Own)) => Err(Refused::Own),
            (Self::Strict, None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(ip: IpAddr) -> Option<LocalKind> {
        match ip.to_string().as_str() {
            "10.0.0.1" | "2001:db8::1" => Some(LocalKind::Own),
            "10.0.0.0" | "10.0.0.255" => Some(LocalKind::NetworkOrBroadcast),
            _ => None,
        }
    }

    fn admit(policy: SourcePolicy, ip: &str) -> Result<(), Refused> {
        policy.admit(ip.parse().unwrap(), host)
    }

    #[test]
    fn special_ranges_are_refused_in_every_encoding() {
        use Refused::*;
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
    fn allow_local_lets_through_what_is_local_and_nothing_else() {
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
    fn ordinary_clients_pass() {
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
