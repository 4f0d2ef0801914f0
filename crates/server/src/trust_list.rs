//! The trust list (`--trust`): the networks (CIDR) of the hosts that may send headers.
//!
//! A peer that may send a header can claim any client address, so there is no default: without a list, nothing starts.
//! The list is checked against the real peer address, before a byte is read.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use peername_sys::fs::text_file;

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
    /// [`TrustError`]; also for an empty list, which is never what was meant.
    pub fn parse<S: AsRef<str>>(values: &[S]) -> Result<Self, TrustError> {
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
    ) -> Result<Self, TrustError> {
        let mut list = Self::default();
        for value in values {
            list.add_value(option, value.as_ref())?;
        }
        if list.networks.is_empty() {
            return Err(TrustError::Empty { option });
        }
        Ok(list)
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

    fn add_value(&mut self, option: &'static str, value: &str) -> Result<(), TrustError> {
        match value.strip_prefix('@') {
            Some(path) => self.add_file(option, PathBuf::from(path)),
            None => self.add_entry(value).ok_or_else(|| TrustError::Value {
                option,
                value: value.to_owned(),
            }),
        }
    }

    /// Adds the entries of a file, one per line; `#` and `;` begin a comment, blank lines are skipped. One invalid line
    /// rejects the whole file: half a list would refuse balancers in silence.
    fn add_file(&mut self, option: &'static str, path: PathBuf) -> Result<(), TrustError> {
        let before = self.networks.len();
        let text = text_file::read(&path).map_err(|source| TrustError::File {
            option,
            path: path.clone(),
            source,
        })?;
        for (number, line) in (1..).zip(text.lines()) {
            let entry = line.split(['#', ';']).next().unwrap_or_default().trim();
            if !entry.is_empty() && self.add_entry(entry).is_none() {
                return Err(TrustError::Line {
                    option,
                    path,
                    number,
                    entry: Some(entry.to_owned()).filter(|entry| resembles_address(entry)),
                });
            }
        }
        if self.networks.len() == before {
            return Err(TrustError::EmptyFile { option, path });
        }
        Ok(())
    }

    /// Adds a network, an address or a keyword; `None` for anything else.
    fn add_entry(&mut self, entry: &str) -> Option<()> {
        match entry {
            "any" => self.networks.extend(ANY),
            "loopback" => self.networks.extend(LOOPBACK),
            "private" => self.networks.extend(LOOPBACK.iter().chain(PRIVATE)),
            entry => self.networks.push(parse_network(entry)?),
        }
        Some(())
    }
}

/// Why a trust list is rejected.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The list is empty.
    #[error(
        "{option}: no network is listed, so no peer could connect; list the balancer's, such as {option} 192.0.2.0/24, or one of \
         private, loopback, any"
    )]
    Empty {
        /// The option that lists networks.
        option: &'static str,
    },
    /// A value is neither a network nor a known keyword.
    #[error(
        "{option} {value:?} is neither a network (192.0.2.0/24), an address, @FILE, private, loopback \
         nor any"
    )]
    Value {
        /// The option.
        option: &'static str,
        /// The value as it was given.
        value: String,
    },
    /// The file can't be read.
    #[error("{option} @{}: {source}", path.display())]
    File {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of open(2) or read(2), or of text that isn't UTF-8.
        source: io::Error,
    },
    /// The file has nothing but comments and blank lines.
    #[error("{option} @{}: the file lists no network, so no peer could connect", path.display())]
    EmptyFile {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// A line of the file is invalid. The error quotes it only if it resembles an address: the file may be the wrong
    /// one, and hold secrets.
    #[error(
        "{option} @{}, line {number}: {}neither a network nor an address",
        path.display(),
        entry.as_ref().map(|entry| format!("{entry:?} is ")).unwrap_or_default()
    )]
    Line {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        number: usize,
        /// The text of the line, if it may be logged.
        entry: Option<String>,
    },
}

/// Whether the entry looks like a mistyped network: nothing but the characters of one, and no longer.
fn resembles_address(entry: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_hexdigit() || b".:/".contains(&byte);
    entry.len() <= 49 && entry.contains(['.', ':']) && entry.bytes().all(is_allowed)
}

/// Parses a network in CIDR form. Host bits are ignored (`10.1.2.3/8` is `10.0.0.0/8`), a single address is a network of
/// one host, and an IPv4-mapped network becomes the IPv4 network.
pub(crate) fn parse_network(entry: &str) -> Option<IpNet> {
    let network = match entry.parse::<IpNet>() {
        Ok(network) => network.trunc(),
        Err(_) => IpNet::from(entry.parse::<IpAddr>().ok()?),
    };
    Some(unmap_ipv4(network))
}

fn unmap_ipv4(network: IpNet) -> IpNet {
    let IpNet::V6(v6) = network else {
        return network;
    };
    match (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96)) {
        (Some(addr), Some(prefix)) => Ipv4Net::new(addr, prefix).map_or(network, IpNet::from),
        _ => network,
    }
}

const fn v4(a: u8, b: u8, prefix: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, 0, 0), prefix))
}

const fn v6(first: u16, last: u16, prefix: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, last),
        prefix,
    ))
}

const ANY: [IpNet; 2] = [v4(0, 0, 0), v6(0, 0, 0)];
const LOOPBACK: [IpNet; 2] = [v4(127, 0, 8), v6(0, 1, 128)];
/// RFC 1918, link-local (RFC 3927, RFC 4291) and unique local addresses (RFC 4193).
const PRIVATE: &[IpNet] = &[
    v4(10, 0, 8),
    v4(172, 16, 12),
    v4(192, 168, 16),
    v4(169, 254, 16),
    v6(0xfe80, 0, 10),
    v6(0xfc00, 0, 7),
];

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
            Err(TrustError::Empty { .. })
        ));
        assert!(matches!(
            TrustList::parse(&["10.0.0.0/33"]),
            Err(TrustError::Value { .. })
        ));
        assert!(matches!(
            TrustList::parse(&["@/nonexistent"]),
            Err(TrustError::File { .. })
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
            Err(TrustError::Line { number: 2, .. })
        ));
        fs::write(&path, "# none yet\n").unwrap();
        assert!(matches!(
            TrustList::parse(&[&value]),
            Err(TrustError::EmptyFile { .. })
        ));
        fs::remove_file(&path).unwrap();
    }
}
