//! Lists of networks (CIDR), as options and files have them: their syntax and their errors.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use peername_sys::fs::text_file;

/// Reads the values of an option in their order: networks, addresses, `@FILE`, and the keywords `private`, `loopback`,
/// `any`. In a file `#` and `;` begin a comment, and blank lines are skipped.
///
/// # Errors
///
/// [`NetworkListError`]. One invalid line rejects the whole file: half a list would refuse wanted clients, or admit unwanted
/// ones.
pub fn read<S: AsRef<str>>(
    option: &'static str,
    values: &[S],
    files: FileContent,
) -> Result<Vec<IpNet>, NetworkListError> {
    let mut list = Reader {
        option,
        files,
        networks: Vec::new(),
    };
    for value in values {
        list.add_value(value.as_ref())?;
    }
    Ok(list.networks)
}

/// What a file must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileContent {
    /// At least one network.
    Required,
    /// Nothing.
    Optional,
}

struct Reader {
    option: &'static str,
    files: FileContent,
    networks: Vec<IpNet>,
}

impl Reader {
    fn add_value(&mut self, value: &str) -> Result<(), NetworkListError> {
        match value.strip_prefix('@') {
            Some(path) => self.add_file(PathBuf::from(path)),
            None => self
                .add_entry(value)
                .ok_or_else(|| NetworkListError::Value {
                    option: self.option,
                    value: value.to_owned(),
                }),
        }
    }

    fn add_file(&mut self, path: PathBuf) -> Result<(), NetworkListError> {
        let option = self.option;
        let before = self.networks.len();
        let text = text_file::read(&path).map_err(|source| NetworkListError::File {
            option,
            path: path.clone(),
            source,
        })?;
        for (number, line) in (1..).zip(text.lines()) {
            let entry = line.split(['#', ';']).next().unwrap_or_default().trim();
            if !entry.is_empty() && self.add_entry(entry).is_none() {
                return Err(NetworkListError::Line {
                    option,
                    path,
                    number,
                    entry: Some(entry.to_owned()).filter(|entry| resembles_address(entry)),
                });
            }
        }
        if self.networks.len() == before && self.files == FileContent::Required {
            return Err(NetworkListError::EmptyFile { option, path });
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

/// Why a list is rejected.
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

/// Whether the entry looks like a mistyped network: nothing but the characters of one, and no longer.
fn resembles_address(entry: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_hexdigit() || b".:/".contains(&byte);
    entry.len() <= 49 && entry.contains(['.', ':']) && entry.bytes().all(is_allowed)
}

/// Parses a network in CIDR form. Host bits are ignored (`10.1.2.3/8` is `10.0.0.0/8`), a single address is a network of
/// one host, and an IPv4-mapped network becomes the IPv4 network.
pub fn parse_network(entry: &str) -> Option<IpNet> {
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
