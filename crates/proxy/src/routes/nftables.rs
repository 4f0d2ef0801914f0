//! nftables rules, installed by nft(8) in peername's own tables. Some bring packets to the proxy that are addressed to none of
//! its sockets; others exempt its connections from connection tracking. A table is replaced and removed as a whole.

use std::fmt::{self, Display, Formatter};
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::process::{Command, Output, Stdio};

use ipnet::IpNet;
use peername_sys::Transport;
use peername_sys::netlink::{Rule, Selector, Traffic};

use super::error::Error;
use super::fwmark::LOCAL_FWMARK;

/// The rules of one nftables table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterRules {
    /// Packets from other hosts to these ports go to one listener (TPROXY).
    Ports {
        /// The destination ports.
        ports: Vec<RangeInclusive<u16>>,
        /// The listener's port.
        to: u16,
        /// The protocols.
        transports: Vec<Transport>,
        /// Destination networks that are routed to this host, besides its own addresses.
        networks: Vec<IpNet>,
    },
    /// Replies to connections that were made with this mark, whatever their destination.
    Replies {
        /// The mark, as `peername proxy --mark` sets it.
        mark: NonZeroU32,
        /// The routing table of the owner; `None` for the administrator.
        owner: Option<u32>,
    },
    /// Connections from clients' addresses to backends on loopback are untracked, so that no NAT rule applies to them.
    Untracked {
        /// The routing rules of the backends.
        rules: Vec<Rule>,
        /// The routing table of the owner.
        owner: u32,
    },
}

impl FilterRules {
    /// The rules for those of the backends that are on loopback; `None` if none is. Connections to other addresses of this host
    /// stay tracked, because a container may publish the port there, to which they are redirected (DNAT).
    pub(super) fn untracked(mut rules: Vec<Rule>, owner: u32) -> Option<Self> {
        rules.retain(
            |rule| matches!(rule.selector, Selector::From { from, .. } if from.is_loopback()),
        );
        (!rules.is_empty()).then_some(Self::Untracked { rules, owner })
    }

    /// Whether the table sets the firewall mark, and so needs the rules of [`super::fwmark`].
    pub(super) fn needs_fwmark(&self) -> bool {
        match self {
            Self::Ports { networks, .. } => !networks.is_empty(),
            Self::Replies { .. } => true,
            Self::Untracked { .. } => false,
        }
    }

    /// Creates or replaces the table in one transaction. Needs CAP_NET_ADMIN.
    pub(super) fn install(&self) -> Result<(), Error> {
        let name = self.name();
        let delete = delete_commands(&name);
        let create = format!("table inet {name} {{\n{self}}}\n");
        nft(&["-f", "-"], &(delete + &create)).map(drop)
    }

    fn name(&self) -> String {
        match self {
            Self::Ports { to, .. } => format!("{TABLE_PREFIX}{TPROXY}{to}"),
            Self::Replies { mark, owner: None } => format!("{TABLE_PREFIX}{REPLIES}{mark}"),
            Self::Replies {
                mark,
                owner: Some(owner),
            } => format!("{TABLE_PREFIX}{REPLIES}{mark}_{owner}"),
            Self::Untracked { owner, .. } => format!("{TABLE_PREFIX}{UNTRACKED}{owner}"),
        }
    }
}

/// The chains of the table, in the syntax of nft(8).
impl Display for FilterRules {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ports {
                ports,
                to,
                transports,
                networks,
            } => {
                writeln!(f, "chain prerouting {{\n{PREROUTING}")?;
                for transport in transports {
                    write_tproxy(f, ports, *to, *transport, networks)?;
                }
                writeln!(f, "}}")
            }
            Self::Replies { mark, .. } => {
                writeln!(f, "chain output {{\n{OUTPUT}")?;
                writeln!(f, "meta mark {mark} ct mark set {mark}\n}}")?;
                writeln!(f, "chain prerouting {{\n{PREROUTING}")?;
                let replies = format!("ct direction reply ct mark {mark}");
                writeln!(f, "{replies} meta mark set {LOCAL_FWMARK:#x}\n}}")
            }
            Self::Untracked { rules, .. } => {
                writeln!(f, "chain output {{\n{OUTPUT_RAW}")?;
                for rule in rules {
                    write_untracked(f, rule.selector)?;
                }
                writeln!(f, "}}")
            }
        }
    }
}

/// Writes the rules that redirect one protocol to a listener.
fn write_tproxy(
    f: &mut Formatter<'_>,
    ports: &[RangeInclusive<u16>],
    to: u16,
    transport: Transport,
    networks: &[IpNet],
) -> fmt::Result {
    let protocol = transport.name();
    // The chain also sees packets from this host to itself, such as those of the proxy's own connections.
    let select = format!("iifname != \"lo\" {protocol} dport {}", port_set(ports));
    if transport == Transport::Udp {
        writeln!(f, "{select} {REPLIES_TO_THIS_HOST} accept")?;
    }
    writeln!(f, "{select} fib daddr type local tproxy to :{to} accept")?;
    for network in networks {
        let family = match network {
            IpNet::V4(_) => "ip",
            IpNet::V6(_) => "ip6",
        };
        writeln!(
            f,
            "{select} {family} daddr {network} tproxy {family} to :{to} meta mark set {LOCAL_FWMARK:#x} accept"
        )?;
    }
    Ok(())
}

/// Writes the rules for the backends of one routing rule, in both directions. Connections from the backends' own addresses
/// stay tracked: health checks and local clients, which DNAT may redirect to a container's published port.
fn write_untracked(f: &mut Formatter<'_>, selector: Selector) -> fmt::Result {
    let Selector::From {
        from,
        prefix_len,
        traffic,
    } = selector
    else {
        return Ok(());
    };
    let (family, icmp) = match from {
        IpAddr::V4(_) => ("ip", "icmp"),
        IpAddr::V6(_) => ("ip6", "ipv6-icmp"),
    };
    let own = format!("{from}/{prefix_len}");
    let to = format!("{family} daddr {own} {family} saddr != {own}");
    let back = format!("oifname \"lo\" {family} saddr {own} {family} daddr != {own}");
    match traffic {
        Traffic::Any => writeln!(f, "{to} notrack\n{back} notrack"),
        Traffic::Port(transport, port) => {
            let name = transport.name();
            writeln!(f, "{to} {name} dport {port} notrack")?;
            writeln!(f, "{back} {name} sport {port} notrack")
        }
        // Connection tracking would classify an ICMP error about an untracked packet as invalid.
        Traffic::Icmp => writeln!(f, "{back} meta l4proto {icmp} notrack"),
    }
}

/// Port ranges as an anonymous set of nft(8).
fn port_set(ports: &[RangeInclusive<u16>]) -> String {
    let ranges: Vec<String> = ports
        .iter()
        .map(|range| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        })
        .collect();
    format!("{{ {} }}", ranges.join(", "))
}

/// A table of peername's, found on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NftTable {
    name: String,
    rules: Vec<String>,
}

impl NftTable {
    #[cfg(test)]
    pub(super) fn untracked(owner: u32) -> Self {
        Self {
            name: format!("{TABLE_PREFIX}{UNTRACKED}{owner}"),
            rules: Vec::new(),
        }
    }

    pub(super) fn tproxy_port(&self) -> Option<u16> {
        let number = self.name.strip_prefix(TABLE_PREFIX)?.strip_prefix(TPROXY)?;
        number.parse().ok()
    }

    pub(super) fn reply_mark(&self) -> Option<NonZeroU32> {
        let rest = self.name.strip_prefix(TABLE_PREFIX)?;
        let mark = rest.strip_prefix(REPLIES)?.split('_').next()?;
        mark.parse().ok()
    }

    pub(super) fn sets_mark(&self) -> bool {
        self.rules.iter().any(|rule| rule.contains("meta mark set"))
    }

    /// The routing table of the owner; `None` for the administrator.
    pub(super) fn owner(&self) -> Option<u32> {
        let rest = self.name.strip_prefix(TABLE_PREFIX)?;
        let owner = match rest.strip_prefix(REPLIES) {
            Some(numbers) => numbers.split_once('_')?.1,
            None => rest.strip_prefix(UNTRACKED)?,
        };
        owner.parse().ok()
    }

    pub(super) fn delete(&self) -> Result<(), Error> {
        delete(&self.name)
    }
}

/// One line for each rule.
impl Display for NftTable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { name, rules } = self;
        let lines: Vec<String> = rules
            .iter()
            .map(|rule| format!("table inet {name}: {rule}"))
            .collect();
        f.write_str(&lines.join("\n"))
    }
}

/// A table that a keeper has installed, as nft(8) lists it.
#[derive(Debug)]
pub(super) struct KeptTable {
    rules: FilterRules,
    listing: String,
}

impl KeptTable {
    pub(super) fn install(rules: FilterRules) -> Result<Self, Error> {
        rules.install()?;
        let listing = list(&rules.name())?;
        Ok(Self { rules, listing })
    }

    /// Installs the table again if its listing has changed, and returns its name then.
    pub(super) fn restore(&self) -> Result<Option<String>, Error> {
        let name = self.rules.name();
        if list(&name).is_ok_and(|listing| listing == self.listing) {
            return Ok(None);
        }
        self.rules.install()?;
        Ok(Some(format!("table inet {name}")))
    }

    /// Deletes the table, if it exists.
    pub(super) fn delete(&self) -> Result<(), Error> {
        delete(&self.rules.name())
    }
}

/// Deletes a table, if it exists.
fn delete(name: &str) -> Result<(), Error> {
    nft(&["-f", "-"], &delete_commands(name)).map(drop)
}

/// The commands that delete a table. `add` comes first, because `delete` fails where there is no table.
fn delete_commands(name: &str) -> String {
    format!("add table inet {name}\ndelete table inet {name}\n")
}

fn list(name: &str) -> Result<String, Error> {
    nft(&["-s", "list", "table", "inet", name], "")
}

/// Finds all tables of peername's. Without nft(8) or the kernel's nf_tables there can be none.
///
/// # Errors
///
/// [`Error::NftPermission`] where tables can't be listed.
pub(super) fn find() -> Result<Vec<NftTable>, Error> {
    let tables = match nft(&["list", "tables", "inet"], "") {
        Err(Error::NoNft) => return Ok(Vec::new()),
        Err(Error::Nft(stderr)) if stderr.contains(NO_NF_TABLES) => return Ok(Vec::new()),
        listed => listed?,
    };
    let mut found = Vec::new();
    for name in tables
        .lines()
        .filter_map(|line| line.strip_prefix("table inet "))
        .filter(|name| name.starts_with(TABLE_PREFIX))
    {
        match list(name) {
            Ok(listing) => found.push(NftTable {
                name: name.to_owned(),
                rules: rules(&listing).map(str::to_owned).collect(),
            }),
            // The owner has removed the table meanwhile.
            Err(Error::Nft(stderr)) if stderr.contains(NO_TABLE) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Deletes the tables of this owner.
pub(super) fn remove_owned(owner: u32) -> Result<(), Error> {
    find()?
        .iter()
        .filter(|table| table.owner() == Some(owner))
        .try_for_each(NftTable::delete)
}

/// The rules in a listing: lines that are neither braces nor the declaration of a chain (`type filter hook …`).
fn rules(listing: &str) -> impl Iterator<Item = &str> {
    let is_rule = |line: &&str| {
        let is_brace = line.ends_with('{') || *line == "}";
        !line.is_empty() && !is_brace && !line.starts_with("type ")
    };
    listing.lines().map(str::trim).filter(is_rule)
}

/// Runs nft(8) and returns what it printed.
fn nft(args: &[&str], input: &str) -> Result<String, Error> {
    let output = run_nft(args, input).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::NoNft,
        _ => Error::Nft(error.to_string()),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains(NOT_PERMITTED) {
        return Err(Error::NftPermission);
    }
    Err(Error::Nft(stderr.trim().replace('\n', " ")))
}

/// Runs nft from the system's directories, without this process's environment: nft may inherit a capability that the user
/// lacks (a file capability of this binary), and the user chooses PATH and LD_PRELOAD.
fn run_nft(args: &[&str], input: &str) -> io::Result<Output> {
    let mut child = Command::new("nft")
        .args(args)
        .env_clear()
        .env("PATH", SYSTEM_PATH)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // The input is smaller than a pipe's buffer. An nft that does not read it reports why on standard error.
        let _ = stdin.write_all(input.as_bytes());
    }
    child.wait_with_output()
}

/// The directories in which nft(8) is searched. The last is NixOS's.
const SYSTEM_PATH: &str =
    "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin:/run/current-system/sw/bin";
/// The prefix of the names of peername's tables: `show` and `remove` find them by it alone.
pub(super) const TABLE_PREFIX: &str = "peername_";
const TPROXY: &str = "tproxy_";
const REPLIES: &str = "mark_";
const UNTRACKED: &str = "untracked_";
/// EOPNOTSUPP or EPROTONOSUPPORT, as nft(8) prints them.
const NO_NF_TABLES: &str = "not supported";
/// Matches replies to this host's unconnected sockets. `tproxy` would redirect them, because it looks for connected sockets
/// only. `ct direction reply` alone would match too much: once the conntrack entry of a balancer's request has expired,
/// the proxy's reply counts as the first packet of a flow, and the balancer's next request as a reply. `socket transparent
/// 0` excludes such requests: the proxy's reply socket is transparent, and once it is closed, no socket matches.
const REPLIES_TO_THIS_HOST: &str = "ct direction reply socket transparent 0";
/// ENOENT, as nft(8) prints it.
const NO_TABLE: &str = "No such file or directory";
/// EPERM, as nft(8) prints it.
const NOT_PERMITTED: &str = "Operation not permitted";
/// The declarations of the chains. This one is after connection tracking and before the routing decision.
const PREROUTING: &str = "type filter hook prerouting priority mangle; policy accept;";
const OUTPUT: &str = "type filter hook output priority mangle; policy accept;";
/// Before connection tracking.
const OUTPUT_RAW: &str = "type filter hook output priority raw; policy accept;";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tproxy_rules_are_in_nft_syntax() {
        let filter = FilterRules::Ports {
            ports: vec![53..=53, 5060..=5061],
            to: 8443,
            transports: vec![Transport::Udp],
            networks: vec!["192.0.2.0/24".parse().unwrap()],
        };
        let replies = "iifname != \"lo\" udp dport { 53, 5060-5061 } ct direction reply \
            socket transparent 0 accept";
        let local = "iifname != \"lo\" udp dport { 53, 5060-5061 } fib daddr type local \
            tproxy to :8443 accept";
        let routed = "iifname != \"lo\" udp dport { 53, 5060-5061 } ip daddr 192.0.2.0/24 \
            tproxy ip to :8443 meta mark set 0x2110 accept";
        let text = filter.to_string();
        assert_eq!(rules(&text).collect::<Vec<_>>(), [replies, local, routed]);
        assert!(filter.needs_fwmark());
        assert_eq!(filter.name(), "peername_tproxy_8443");
    }

    #[test]
    fn only_backends_on_loopback_are_untracked() {
        let rule = |from: &str| Rule {
            selector: Selector::From {
                from: from.parse().unwrap(),
                prefix_len: 32,
                traffic: Traffic::Port(Transport::Tcp, 80),
            },
            table: 21101,
            priority: 2111,
            protocol: 211,
        };
        let untracked = |from: &[&str]| {
            let rules = from.iter().copied().map(rule).collect();
            FilterRules::untracked(rules, 21101).map(|filter| filter.to_string())
        };
        assert_eq!(untracked(&["10.0.0.5"]), None);
        let text = untracked(&["10.0.0.5", "127.0.0.1"]).unwrap();
        assert!(text.contains("127.0.0.1/32") && !text.contains("10.0.0.5"));
    }
}
