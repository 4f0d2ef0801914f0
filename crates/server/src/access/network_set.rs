//! Sets of networks in CIDR notation, as options and files list them: trusted peers, clients, networks of this host.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use peername_proto::{
    ParseNetworkError, Special, networks_of, parse_network, parse_truncated_network,
};
use peername_sys::fs::text_file;
use prefix_trie::joint::JointPrefixSet;

/// A set of networks, as a prefix trie: a list of bans may have a hundred thousand, and a lookup takes at most as many steps
/// as an address has bits.
///
/// An IPv4-mapped address is looked up as the IPv4 address; apart from that, networks of one family contain no address of
/// the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkSet(JointPrefixSet<IpNet>);

impl NetworkSet {
    /// Reads the values of an option: networks, addresses, `@FILE`, and the keywords `private`, `loopback`, `any`. In a file
    /// `#` and `;` begin a comment, blank lines are skipped, and host bits are ignored, as in lists of other programs.
    /// One invalid line rejects the whole file: half a list would refuse wanted clients, or admit unwanted ones.
    pub fn read<S: AsRef<str>>(
        option: &'static str,
        values: &[S],
        files: FileContent,
    ) -> Result<Self, NetworkListError> {
        let mut reader = Reader {
            option,
            files,
            networks: Self::default(),
        };
        for value in values {
            reader.add_value(value.as_ref())?;
        }
        Ok(reader.networks)
    }

    /// Reads the values of an option that must list a network. The trust list (`--trust`) is one: a peer that may send a
    /// header can claim any client address, so there is no default.
    pub fn read_required<S: AsRef<str>>(
        option: &'static str,
        values: &[S],
    ) -> Result<Self, NetworkListError> {
        let networks = Self::read(option, values, FileContent::Required)?;
        if networks.is_empty() {
            return Err(NetworkListError::Empty { option });
        }
        Ok(networks)
    }

    /// Adds a network.
    pub fn insert(&mut self, network: IpNet) {
        self.0.insert(network);
    }

    /// Whether one of the networks contains the address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.is_covered(&host_network(ip))
    }

    /// The network with the longest prefix that contains the address.
    pub fn longest_match(&self, ip: IpAddr) -> Option<IpNet> {
        self.0.get_lpm(&host_network(ip))
    }

    /// Whether the set contains every address of the same family as `ip`.
    pub fn contains_family_of(&self, ip: IpAddr) -> bool {
        self.0
            .get_spm(&host_network(ip))
            .is_some_and(|network| network.prefix_len() == 0)
    }

    /// The networks, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> {
        self.0.iter()
    }

    /// The number of networks.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no network.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The network that contains only this address.
pub(crate) fn host_network(ip: IpAddr) -> IpNet {
    IpNet::from(ip.to_canonical())
}

/// Whether a file must list a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileContent {
    /// It must list at least one.
    Required,
    /// It may be empty.
    Optional,
}

struct Reader {
    option: &'static str,
    files: FileContent,
    networks: NetworkSet,
}

impl Reader {
    fn add_value(&mut self, value: &str) -> Result<(), NetworkListError> {
        match value.strip_prefix('@') {
            Some(path) => self.add_file(PathBuf::from(path)),
            None => {
                let (option, value) = (self.option, value.to_owned());
                self.add_entry(&value, parse_network)
                    .map_err(|error| match error {
                        ParseNetworkError::Form => NetworkListError::Value { option, value },
                        ParseNetworkError::HostBits { .. } => NetworkListError::HostBits {
                            option,
                            value,
                            error,
                        },
                    })
            }
        }
    }

    fn add_file(&mut self, path: PathBuf) -> Result<(), NetworkListError> {
        let option = self.option;
        let text = text_file::read(&path).map_err(|source| NetworkListError::File {
            option,
            path: path.clone(),
            source,
        })?;
        let mut is_empty = true;
        for (number, line) in (1..).zip(text.lines()) {
            let entry = line.split(['#', ';']).next().unwrap_or_default().trim();
            if entry.is_empty() {
                continue;
            }
            is_empty = false;
            let parse = |text: &str| parse_truncated_network(text).ok_or(ParseNetworkError::Form);
            if self.add_entry(entry, parse).is_err() {
                return Err(NetworkListError::Line {
                    option,
                    path,
                    number,
                    entry: Some(entry.to_owned()).filter(|entry| resembles_address(entry)),
                });
            }
        }
        if is_empty && self.files == FileContent::Required {
            return Err(NetworkListError::EmptyFile { option, path });
        }
        Ok(())
    }

    /// Adds a network, an address or a keyword.
    fn add_entry(
        &mut self,
        entry: &str,
        parse: impl Fn(&str) -> Result<IpNet, ParseNetworkError>,
    ) -> Result<(), ParseNetworkError> {
        let networks: Vec<_> = match entry {
            "any" => vec![Ipv4Net::default().into(), Ipv6Net::default().into()],
            "loopback" => networks_of(Special::Loopback).collect(),
            "private" => [Special::Loopback, Special::LinkLocal, Special::Private]
                .into_iter()
                .flat_map(networks_of)
                .collect(),
            network => vec![parse(network)?],
        };
        for network in networks {
            self.networks.insert(network);
        }
        Ok(())
    }
}

/// The reason to reject a list.
#[derive(Debug, thiserror::Error)]
pub enum NetworkListError {
    /// The list is empty.
    #[error(
        "{option}: no network is listed, so no peer could connect; list the balancer's, such as 192.0.2.0/24, or one of \
         private, loopback, any"
    )]
    Empty {
        /// The option that lists networks.
        option: &'static str,
    },
    /// A value is neither a network nor a known keyword.
    #[error(
        "{option} {value:?} is neither a network (192.0.2.0/24), an address, @FILE, private, loopback \
         nor any{}",
        value_hint(value)
    )]
    Value {
        /// The option.
        option: &'static str,
        /// The value as it was given.
        value: String,
    },
    /// A value has bits set behind its prefix length.
    #[error("{option} {value}: {error}")]
    HostBits {
        /// The option.
        option: &'static str,
        /// The value as it was given.
        value: String,
        /// [`ParseNetworkError::HostBits`].
        error: ParseNetworkError,
    },
    /// The file can't be read.
    #[error("{option} @{}: {source}{}", path.display(), advice(source))]
    File {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of open(2) or read(2), or of text that isn't UTF-8.
        source: io::Error,
    },
    /// The file has nothing but comments and blank lines.
    #[error("{option} @{}: the file lists no network, so none could connect", path.display())]
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

fn value_hint(value: &str) -> String {
    if Path::new(value).is_file() {
        format!("; for the networks in this file write @{value}")
    } else if value.contains(',') {
        "; several are values of their own: one for each option, or elements of a list".to_owned()
    } else if let Some(max) = exceeded_prefix_length(value) {
        format!("; the length after the slash is {max} at most")
    } else if resembles_name(value) {
        "; names are not resolved here: list the addresses, or write them to a file and list @FILE"
            .to_owned()
    } else {
        String::new()
    }
}

/// The greatest prefix length of the family, if the value has a greater one.
fn exceeded_prefix_length(value: &str) -> Option<u32> {
    let (address, length) = value.split_once('/')?;
    let max = match address.parse::<IpAddr>().ok()? {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    };
    length
        .parse::<u32>()
        .is_ok_and(|length| length > max)
        .then_some(max)
}

fn resembles_name(value: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    value.contains('.')
        && value.bytes().all(is_allowed)
        && value.bytes().any(|byte| byte.is_ascii_alphabetic())
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; write the networks to it, one a line",
        _ => "",
    }
}

/// Whether the entry looks like a mistyped network: it has the characters of a network only, and is not longer.
fn resembles_address(entry: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_hexdigit() || b".:/".contains(&byte);
    entry.len() <= MAX_NETWORK_LEN && entry.contains(['.', ':']) && entry.bytes().all(is_allowed)
}

/// Bytes of the longest network: IPv6 with a dotted tail (45), and `/128`.
const MAX_NETWORK_LEN: usize = 49;

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::NamedTempFile;

    use super::*;

    fn trusts(values: &[&str], peer: &str) -> bool {
        NetworkSet::read_required("--trust", values)
            .unwrap()
            .contains(peer.parse().unwrap())
    }

    #[test]
    fn networks_and_addresses_cover_their_mapped_forms_too() {
        for (value, peer, is_trusted) in [
            ("192.0.2.0/24", "192.0.2.9", true),
            ("192.0.2.0/24", "192.0.3.9", false),
            ("2001:db8::7", "2001:db8::7", true),
            ("2001:db8::7", "2001:db8::8", false),
            ("192.0.2.0/24", "::ffff:192.0.2.1", true),
            ("::ffff:192.0.2.0/120", "192.0.2.1", true),
            ("::ffff:192.0.2.0/120", "192.0.3.1", false),
        ] {
            assert_eq!(trusts(&[value], peer), is_trusted, "{value} {peer}");
        }
    }

    #[test]
    fn host_bits_are_refused_in_values_and_ignored_in_files() {
        for (value, network, address) in [
            ("10.1.2.3/8", "10.0.0.0/8", "10.1.2.3"),
            ("2001:db8::1/32", "2001:db8::/32", "2001:db8::1"),
            ("::ffff:192.0.2.9/120", "192.0.2.0/24", "192.0.2.9"),
        ] {
            let error = NetworkSet::read_required("--trust", &[value]).unwrap_err();
            let advice = format!("write {network} for all of it, or {address} alone");
            assert!(error.to_string().ends_with(&advice), "{error}");
        }
        let file = NamedTempFile::new().unwrap();
        fs::write(&file, "10.1.2.3/8\n").unwrap();
        let value = format!("@{}", file.path().display());
        assert!(trusts(&[&value], "10.200.0.1"));
    }

    #[test]
    fn network_contains_no_address_of_the_other_family() {
        let read = |value| NetworkSet::read_required("--trust", &[value]).unwrap();
        let (v4, v6) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        assert!(read("0.0.0.0/0").contains_family_of(v4) && !read("0.0.0.0/0").contains(v6));
        assert!(read("::/0").contains_family_of(v6) && !read("::/0").contains(v4));
        assert!(!read("private").contains_family_of(v4));
    }

    #[test]
    fn empty_list_and_invalid_values_are_rejected() {
        assert!(matches!(
            NetworkSet::read_required::<&str>("--trust", &[]),
            Err(NetworkListError::Empty { .. })
        ));
        for (value, hint) in [
            ("10.0.0.0/33", "; the length after the slash is 32 at most"),
            ("::1/129", "; the length after the slash is 128 at most"),
            ("lb.example.com", "; names are not resolved here: "),
            ("privat", "nor any"),
        ] {
            let error = NetworkSet::read_required("--trust", &[value]).unwrap_err();
            assert!(matches!(error, NetworkListError::Value { .. }));
            assert!(error.to_string().contains(hint), "{error}");
        }
        assert!(matches!(
            NetworkSet::read_required("--trust", &["@/nonexistent"]),
            Err(NetworkListError::File { .. })
        ));
    }

    #[test]
    fn file_may_have_comments_and_blank_lines_but_no_invalid_line() {
        let file = NamedTempFile::new().unwrap();
        let value = format!("@{}", file.path().display());
        fs::write(
            &file,
            "# balancers\n\n192.0.2.1 ; the first\n  10.0.0.0/8\n",
        )
        .unwrap();
        assert!(trusts(&[&value], "192.0.2.1") && trusts(&[&value], "10.9.9.9"));
        fs::write(&file, "192.0.2.1\nbalancer.example\n").unwrap();
        assert!(matches!(
            NetworkSet::read_required("--trust", &[&value]),
            Err(NetworkListError::Line { number: 2, .. })
        ));
        fs::write(&file, "# none yet\n").unwrap();
        assert!(matches!(
            NetworkSet::read_required("--trust", &[&value]),
            Err(NetworkListError::EmptyFile { .. })
        ));
    }
}
