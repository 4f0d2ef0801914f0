//! Which peers may send headers.
//!
//! Whoever may send a header may claim to be anybody, so there is no default: the list is given, or
//! nothing starts. It is compared with the real peer address, before a byte is read.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use peername_sys::fs::text_file;

/// A list of trusted networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustList {
    networks: Vec<IpNet>,
}

impl TrustList {
    /// Reads the words of `--trust`: a network, a bare address, `@FILE`, `private`, `loopback`, `any`.
    ///
    /// # Errors
    ///
    /// [`TrustError`]; an empty list is one, because "nobody" is never what was meant.
    pub fn parse<S: AsRef<str>>(words: &[S]) -> Result<Self, TrustError> {
        Self::parse_option("--trust", words)
    }

    /// The same for another option, which the errors name.
    ///
    /// # Errors
    ///
    /// As [`TrustList::parse`].
    pub fn parse_option<S: AsRef<str>>(
        option: &'static str,
        words: &[S],
    ) -> Result<Self, TrustError> {
        let mut list = Self::default();
        for word in words {
            list.add_word(option, word.as_ref())?;
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

    /// Whether every host with an address of this one's family may send headers.
    pub fn is_everybody(&self, like: IpAddr) -> bool {
        let like = like.to_canonical().is_ipv4();
        let mut networks = self.networks.iter();
        networks.any(|network| network.prefix_len() == 0 && network.addr().is_ipv4() == like)
    }

    /// The networks, in the order they were given.
    pub fn networks(&self) -> &[IpNet] {
        &self.networks
    }

    fn add_word(&mut self, option: &'static str, word: &str) -> Result<(), TrustError> {
        match word.strip_prefix('@') {
            Some(path) => self.add_file(option, PathBuf::from(path)),
            None => self.add(word).ok_or_else(|| TrustError::Word {
                option,
                word: word.to_owned(),
            }),
        }
    }

    /// One entry a line; `#` and `;` begin a comment, blank lines are skipped. One bad line refuses the
    /// file: a list that was understood by half is not a list.
    fn add_file(&mut self, option: &'static str, path: PathBuf) -> Result<(), TrustError> {
        let before = self.networks.len();
        let text = text_file::read(&path).map_err(|source| TrustError::File {
            option,
            path: path.clone(),
            source,
        })?;
        for (number, line) in (1..).zip(text.lines()) {
            let entry = line.split(['#', ';']).next().unwrap_or_default().trim();
            if !entry.is_empty() && self.add(entry).is_none() {
                return Err(TrustError::Line {
                    option,
                    path,
                    number,
                    entry: Some(entry.to_owned()).filter(|entry| is_like_an_address(entry)),
                });
            }
        }
        if self.networks.len() == before {
            return Err(TrustError::EmptyFile { option, path });
        }
        Ok(())
    }

    fn add(&mut self, entry: &str) -> Option<()> {
        match entry {
            "any" => self.networks.extend(ANY),
            "loopback" => self.networks.extend(LOOPBACK),
            "private" => self.networks.extend(LOOPBACK.iter().chain(PRIVATE)),
            entry => self.networks.push(network(entry)?),
        }
        Some(())
    }
}

/// Why a trust list is none.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// Nobody is trusted.
    #[error(
        "{option}: no network is named, so nobody could connect; name the balancer's, such as {option} 192.0.2.0/24, or one of \
         private, loopback, any"
    )]
    Empty {
        /// The option that lists networks.
        option: &'static str,
    },
    /// A word is none of those that are known.
    #[error(
        "{option} {word:?} is neither a network (192.0.2.0/24), an address, @FILE, private, loopback \
         nor any"
    )]
    Word {
        /// The option.
        option: &'static str,
        /// As it was given.
        word: String,
    },
    /// The file can't be read.
    #[error("{option} @{}: {source}", path.display())]
    File {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file has nothing but comments and blank lines.
    #[error("{option} @{}: the file names no network, so nobody could connect", path.display())]
    EmptyFile {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// A line of the file can't be understood. The text quotes it only if it is like an address: the file may be no
    /// list at all, but one of secrets.
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
        /// Its line, from 1.
        number: usize,
        /// What stands there, if it may be shown.
        entry: Option<String>,
    },
}

/// Whether it can be a network with a slip in it, and nothing else.
fn is_like_an_address(entry: &str) -> bool {
    let digits = |octet: u8| octet.is_ascii_hexdigit() || b".:/".contains(&octet);
    entry.len() <= 49 && entry.contains(['.', ':']) && entry.bytes().all(digits)
}

/// Host bits are ignored (`10.1.2.3/8` is `10.0.0.0/8`), a bare address is a network of one, and an
/// IPv4-mapped network is the IPv4 network it stands for.
pub(crate) fn network(entry: &str) -> Option<IpNet> {
    let network = match entry.parse::<IpNet>() {
        Ok(network) => network.trunc(),
        Err(_) => IpNet::from(entry.parse::<IpAddr>().ok()?),
    };
    Some(unmapped(network))
}

fn unmapped(network: IpNet) -> IpNet {
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

    fn trusts(words: &[&str], peer: &str) -> bool {
        TrustList::parse(words)
            .unwrap()
            .contains(peer.parse().unwrap())
    }

    #[test]
    fn networks_bare_addresses_and_host_bits() {
        assert!(trusts(&["192.0.2.0/24"], "192.0.2.9"));
        assert!(!trusts(&["192.0.2.0/24"], "192.0.3.9"));
        assert!(trusts(&["10.1.2.3/8"], "10.200.0.1"));
        assert!(trusts(&["2001:db8::7"], "2001:db8::7"));
        assert!(!trusts(&["2001:db8::7"], "2001:db8::8"));
    }

    #[test]
    fn an_ipv4_network_covers_the_mapped_form_and_the_reverse() {
        assert!(trusts(&["192.0.2.0/24"], "::ffff:192.0.2.1"));
        assert!(trusts(&["::ffff:192.0.2.0/120"], "192.0.2.1"));
        assert!(!trusts(&["::ffff:192.0.2.0/120"], "192.0.3.1"));
    }

    #[test]
    fn words_stand_for_their_networks() {
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
    fn what_is_not_understood_is_refused() {
        assert!(matches!(
            TrustList::parse::<&str>(&[]),
            Err(TrustError::Empty { .. })
        ));
        assert!(matches!(
            TrustList::parse(&["10.0.0.0/33"]),
            Err(TrustError::Word { .. })
        ));
        assert!(matches!(
            TrustList::parse(&["@/nonexistent"]),
            Err(TrustError::File { .. })
        ));
    }

    #[test]
    fn a_file_has_comments_blank_lines_and_only_good_lines() {
        let path = std::env::temp_dir().join(format!("peername-trust-{}", std::process::id()));
        let word = format!("@{}", path.display());
        fs::write(
            &path,
            "# balancers\n\n192.0.2.1 ; the first\n  10.0.0.0/8\n",
        )
        .unwrap();
        assert!(trusts(&[&word], "192.0.2.1") && trusts(&[&word], "10.9.9.9"));
        fs::write(&path, "192.0.2.1\nbalancer.example\n").unwrap();
        assert!(matches!(
            TrustList::parse(&[&word]),
            Err(TrustError::Line { number: 2, .. })
        ));
        fs::write(&path, "# nobody yet\n").unwrap();
        assert!(matches!(
            TrustList::parse(&[&word]),
            Err(TrustError::EmptyFile { .. })
        ));
        fs::remove_file(&path).unwrap();
    }
}
