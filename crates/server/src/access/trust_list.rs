//! The trust list (`--trust`): the networks (CIDR) of the hosts that may send headers.
//!
//! A peer that may send a header can claim any client address, so there is no default: without a list, nothing starts.
//! The list is checked against the real peer address, before a byte is read.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::access::network_list::{self, FileContent, NetworkListError};

/// The networks of trusted hosts, in CIDR form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustList {
    networks: Vec<IpNet>,
}

impl TrustList {
    /// Parses the values of `--trust`: networks, addresses, `@FILE`, and the keywords `private`, `loopback`, `any`.
    ///
    /// # Errors
    ///
    /// [`NetworkListError`]; also for an empty list, which is never what was meant.
    pub fn parse<S: AsRef<str>>(values: &[S]) -> Result<Self, NetworkListError> {
        Self::parse_option("--trust", values)
    }

    /// As [`TrustList::parse`] for another option, which the errors name.
    ///
    /// # Errors
    ///
    /// As [`TrustList::parse`].
    pub fn parse_option<S: AsRef<str>>(
        option: &'static str,
        values: &[S],
    ) -> Result<Self, NetworkListError> {
        let networks = network_list::read(option, values, FileContent::Required)?;
        match networks.is_empty() {
            true => Err(NetworkListError::Empty { option }),
            false => Ok(Self { networks }),
        }
    }

    /// Whether a host with this address may send headers.
    pub fn contains(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.networks.iter().any(|network| network.contains(&peer))
    }

    /// Whether every host with an address of this family may send headers.
    pub fn trusts_all_of_family(&self, address: IpAddr) -> bool {
        let is_ipv4 = address.to_canonical().is_ipv4();
        let mut networks = self.networks.iter();
        networks.any(|network| network.prefix_len() == 0 && network.addr().is_ipv4() == is_ipv4)
    }

    /// The networks, in the order they were given.
    pub fn networks(&self) -> &[IpNet] {
        &self.networks
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn trusts(values: &[&str], peer: &str) -> bool {
        TrustList::parse(values)
            .unwrap()
            .contains(peer.parse().unwrap())
    }

    #[test]
    fn networks_addresses_and_host_bits_are_parsed() {
        assert!(trusts(&["192.0.2.0/24"], "192.0.2.9"));
        assert!(!trusts(&["192.0.2.0/24"], "192.0.3.9"));
        assert!(trusts(&["10.1.2.3/8"], "10.200.0.1"));
        assert!(trusts(&["2001:db8::7"], "2001:db8::7"));
        assert!(!trusts(&["2001:db8::7"], "2001:db8::8"));
    }

    #[test]
    fn ipv4_network_covers_the_mapped_form_and_the_reverse() {
        assert!(trusts(&["192.0.2.0/24"], "::ffff:192.0.2.1"));
        assert!(trusts(&["::ffff:192.0.2.0/120"], "192.0.2.1"));
        assert!(!trusts(&["::ffff:192.0.2.0/120"], "192.0.3.1"));
    }

    #[test]
    fn keywords_stand_for_their_networks() {
        for peer in [
            "127.0.0.1",
            "::1",
            "10.0.0.1",
            "172.31.0.1",
            "192.168.9.9",
            "fe80::1",
            "fd00::1",
        ] {
            assert!(trusts(&["private"], peer), "{peer}");
        }
        for peer in ["172.32.0.1", "8.8.8.8", "2001:db8::1"] {
            assert!(!trusts(&["private"], peer), "{peer}");
            assert!(trusts(&["any"], peer), "{peer}");
        }
        assert!(!trusts(&["loopback"], "10.0.0.1"));
    }

    #[test]
    fn empty_list_and_invalid_values_are_rejected() {
        assert!(matches!(
            TrustList::parse::<&str>(&[]),
            Err(NetworkListError::Empty { .. })
        ));
        assert!(matches!(
            TrustList::parse(&["10.0.0.0/33"]),
            Err(NetworkListError::Value { .. })
        ));
        assert!(matches!(
            TrustList::parse(&["@/nonexistent"]),
            Err(NetworkListError::File { .. })
        ));
    }

    #[test]
    fn file_may_have_comments_and_blank_lines_but_no_invalid_line() {
        let path = std::env::temp_dir().join(format!("peername-trust-{}", std::process::id()));
        let value = format!("@{}", path.display());
        fs::write(
            &path,
            "# balancers\n\n192.0.2.1 ; the first\n  10.0.0.0/8\n",
        )
        .unwrap();
        assert!(trusts(&[&value], "192.0.2.1") && trusts(&[&value], "10.9.9.9"));
        fs::write(&path, "192.0.2.1\nbalancer.example\n").unwrap();
        assert!(matches!(
            TrustList::parse(&[&value]),
            Err(NetworkListError::Line { number: 2, .. })
        ));
        fs::write(&path, "# none yet\n").unwrap();
        assert!(matches!(
            TrustList::parse(&[&value]),
            Err(NetworkListError::EmptyFile { .. })
        ));
        fs::remove_file(&path).unwrap();
    }
}
