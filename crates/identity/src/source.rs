//! Which clients a header may name.
//!
//! The same as `peername proxy --source-policy`, but for one thing: which addresses the host has, besides
//! loopback, can't be known here, where nothing is asked of the kernel.

use core::net::{IpAddr, SocketAddr};

use peername_proto::{Special, meanings, special};

/// How claims of special addresses are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePolicy {
    /// Refused: a program that trusts localhost must not be told that a remote client is local.
    #[default]
    Strict,
    /// Loopback addresses are believed; those that no host has are not.
    AllowLocal,
    /// All are believed.
    Any,
}

impl SourcePolicy {
    /// Client and destination as the header of a connection from `peer` names them: `None` if it names
    /// nobody, or only who sent it.
    ///
    /// # Errors
    ///
    /// [`Special`]: the connection is to be refused, for what the client's address is.
    pub(crate) fn admit(
        self,
        named: Option<Ends>,
        peer: SocketAddr,
    ) -> Result<Option<Ends>, Special> {
        let Some((client, _)) = named else {
            return Ok(None);
        };
        match self.refuses(client.ip()) {
            // No client has port 0, and none can be connected to it.
            None if client.port() == 0 && self != Self::Any => Err(Special::Unspecified),
            None => Ok(named),
            // A balancer on this host that says where its own connection comes from: in version 1 a
            // health check has no other words.
            Some(Special::Loopback) if canonical(client) == canonical(peer) => Ok(None),
            Some(special) => Err(special),
        }
    }

    fn refuses(self, client: IpAddr) -> Option<Special> {
        let refused = |what: &Special| match self {
            Self::Strict => true,
            Self::AllowLocal => *what != Special::Loopback,
            Self::Any => false,
        };
        meanings(client).filter_map(special).find(refused)
    }

    /// A word that nobody has written is [`SourcePolicy::Strict`].
    pub(crate) fn from_word(word: u64) -> Self {
        match word {
            1 => Self::AllowLocal,
            2 => Self::Any,
            _ => Self::Strict,
        }
    }

    pub(crate) fn to_word(self) -> u64 {
        match self {
            Self::Strict => 0,
            Self::AllowLocal => 1,
            Self::Any => 2,
        }
    }
}

/// Client and destination.
type Ends = (SocketAddr, SocketAddr);

fn canonical(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    fn admit(policy: SourcePolicy, client: &str, peer: &str) -> Result<bool, Special> {
        let client: SocketAddr = client.parse().unwrap();
        let named = policy.admit(Some((client, client)), peer.parse().unwrap())?;
        Ok(named == Some((client, client)))
    }

    fn admits(policy: SourcePolicy, ip: &str) -> bool {
        let client = SocketAddr::new(ip.parse().unwrap(), 5).to_string();
        admit(policy, &client, "192.0.2.1:5") == Ok(true)
    }

    #[test]
    fn local_addresses_and_nobodys() {
        use SourcePolicy::*;
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
            assert_eq!(SourcePolicy::from_word(policy.to_word()), policy);
        }
    }

    #[test]
    fn who_names_itself_speaks_for_itself() {
        let admit = |client, peer| admit(SourcePolicy::Strict, client, peer);
        assert_eq!(admit("127.0.0.1:5", "127.0.0.1:5"), Ok(false));
        assert_eq!(admit("127.0.0.1:5", "[::ffff:127.0.0.1]:5"), Ok(false));
        assert_eq!(
            admit("192.0.2.1:0", "192.0.2.1:5"),
            Err(Special::Unspecified)
        );
        for (client, peer) in [
            ("127.0.0.1:6", "127.0.0.1:5"),
            ("127.0.0.1:5", "192.0.2.1:5"),
        ] {
            assert_eq!(admit(client, peer), Err(Special::Loopback));
        }
    }
}
