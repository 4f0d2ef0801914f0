//! Checks that NAT rules of this host leave clients their addresses on the way to a backend.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::process::Command;

use ipnet::IpNet;
use peername_proto::parse_truncated_network;
use peername_proxy::nat_probe::{fresh_source, probe_egress};
use peername_proxy::reply_path::probe::foreign_addr;
use peername_proxy::routes::{Backend, BackendLocation, locate_backend};
use peername_sys::SyscallError;
use peername_sys::netlink::Netlink;

use crate::finding::Finding;

/// Sends packets that the backend's kernel drops, and checks with which addresses they leave. Their sources are a documentation
/// address, and one address in each network that has a NAT rule or an interface here.
pub async fn check(backend: Backend, mark: u32) -> Finding {
    match examine(backend, NonZeroU32::new(mark)).await {
        Ok(finding) => finding,
        Err(error) => Finding::broken(CHECK, format!("{}: {error}", backend.address)),
    }
}

async fn examine(backend: Backend, mark: Option<NonZeroU32>) -> Result<Finding, SyscallError> {
    let target = backend.address;
    let netlink = Netlink::open()?;
    let clients = clients_to_try(&netlink, target.ip()).await?;
    if mark.is_none() && is_on_other_host(&netlink, target).await {
        let seen = format!(
            "{target} is on another host: what changes the address on the way can't be seen"
        );
        return Ok(Finding::ok(CHECK, seen));
    }
    let mut kept = 0_u32;
    for (&client, rule) in &clients {
        let seen = match probe_egress(backend, mark, fresh_source(client)?) {
            Ok(Some(seen)) => seen,
            Ok(None) => continue,
            Err(error) if error.is_permission() => {
                return Ok(Finding::fail(
                    CHECK,
                    error.to_string(),
                    "see CAP_NET_RAW above",
                ));
            }
            Err(error) => return Err(error),
        };
        if seen.source.ip() != client {
            return Ok(masked(backend, client, seen.source.ip(), rule));
        }
        if seen.destination != target {
            return Ok(Finding::warn(
                CHECK,
                format!(
                    "a rule redirects connections to {target} to {}: what that server sees can't be verified",
                    seen.destination
                ),
                format!("name {} as the target", seen.destination),
            ));
        }
        kept += 1;
    }
    Ok(match kept {
        0 => Finding::warn(
            CHECK,
            format!("the network device to {target} does not show how packets leave"),
            "look for masquerading rules: `nft list ruleset`, `iptables-save -t nat`",
        ),
        1 => Finding::ok(
            CHECK,
            format!("{target} sees the client's address unchanged (1 tried)"),
        ),
        kept => Finding::ok(
            CHECK,
            format!(
                "{target} sees clients' addresses unchanged ({kept} tried, one in each network of this host and its NAT rules)"
            ),
        ),
    })
}

/// The finding about a client whose address is replaced by `seen`; `rule` is empty if it is not known.
fn masked(backend: Backend, client: IpAddr, seen: IpAddr, rule: &str) -> Finding {
    let target = backend.address;
    let by_rule = match rule {
        "" => String::new(),
        rule => format!(", by `{rule}`"),
    };
    let program = match client {
        IpAddr::V4(_) => "iptables",
        IpAddr::V6(_) => "ip6tables",
    };
    Finding::fail(
        CHECK,
        format!("{target} would see {seen} instead of {client}{by_rule}"),
        format!(
            "`--setup-routes` or `peername routes add` exempts a backend on loopback; otherwise `{program} -t nat -I \
             POSTROUTING -d {} -p {} --dport {} -j ACCEPT`, or the same in the program that has the rule",
            target.ip(),
            backend.transport.name(),
            target.port()
        ),
    )
}

/// The clients to try, of the target's family, each with the NAT rule that names its network; the rule is empty if there is
/// none.
async fn clients_to_try(
    netlink: &Netlink,
    target: IpAddr,
) -> Result<BTreeMap<IpAddr, String>, SyscallError> {
    let interfaces = netlink.addresses().await?;
    let own: Vec<IpAddr> = interfaces.iter().map(|interface| interface.own).collect();
    let attached = interfaces.iter().filter_map(|interface| {
        let network = IpNet::new(interface.network, interface.prefix_len).ok()?;
        Some((network, String::new()))
    });
    let listed = list_rules();
    let documentation = (IpNet::from(foreign_addr(target)), String::new());
    let networks = [documentation]
        .into_iter()
        .chain(attached)
        .chain(networks_in(&listed));
    let mut clients = BTreeMap::new();
    for (network, rule) in networks {
        if clients.len() == MAX_CLIENTS {
            break;
        }
        let client = network
            .hosts()
            .take(MAX_OWN_ADDRESSES)
            .find(|host| !own.contains(host) && !host.is_loopback())
            .filter(|client| client.is_ipv4() == target.is_ipv4());
        if let Some(client) = client {
            let known_rule = clients.entry(client).or_insert_with(String::new);
            if known_rule.is_empty() {
                *known_rule = rule;
            }
        }
    }
    Ok(clients)
}

async fn is_on_other_host(netlink: &Netlink, target: SocketAddr) -> bool {
    let location = locate_backend(netlink, target).await;
    matches!(location, Ok(BackendLocation::OtherHost))
}

/// Lists the rules of the packet filter, if the programs that list them are installed. On most hosts iptables is a front end of
/// nftables; the `legacy` programs list the tables that only iptables has.
fn list_rules() -> String {
    const LISTINGS: [&[&str]; 3] = [
        &["nft", "list", "ruleset"],
        &["iptables-legacy-save", "-t", "nat"],
        &["ip6tables-legacy-save", "-t", "nat"],
    ];
    LISTINGS
        .iter()
        .filter_map(|listing| {
            let (program, args) = listing.split_first()?;
            let output = Command::new(program).args(args).output().ok()?;
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        })
        .collect()
}

/// Every network in the text, with its line if that is a NAT rule, else with an empty text. Networks that only a filter rule
/// names are listed, too: each costs no more than one packet.
fn networks_in(rules: &str) -> impl Iterator<Item = (IpNet, String)> {
    rules.lines().flat_map(|line| {
        let lower = line.to_lowercase();
        let is_nat = lower.contains("masquerade") || lower.contains("snat");
        let rule = if is_nat { line.trim() } else { "" };
        line.split(|c: char| c.is_whitespace() || "{},".contains(c))
            .filter_map(parse_truncated_network)
            .map(|network| (network, rule.to_owned()))
    })
}

const CHECK: &str = "clients' addresses";
/// Bounds the packets on a host with long lists of addresses in its rules.
const MAX_CLIENTS: usize = 2000;
/// Bounds the search in a network for an address that this host does not have.
const MAX_OWN_ADDRESSES: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_found_in_rules_of_nft_and_iptables() {
        let rules = "
            ip saddr 172.17.0.0/16 oifname != \"docker0\" counter packets 0 bytes 0 masquerade
            elements = { 10.8.0.0/24, fd00::7 }
            -A POSTROUTING -s 192.168.122.0/24 ! -d 192.168.122.0/24 -j SNAT --to-source 10.0.0.1";
        let found: Vec<_> = networks_in(rules).collect();
        let networks: Vec<_> = found
            .iter()
            .map(|(network, _)| network.to_string())
            .collect();
        assert_eq!(
            networks,
            [
                "172.17.0.0/16",
                "10.8.0.0/24",
                "fd00::7/128",
                "192.168.122.0/24",
                "192.168.122.0/24",
                "10.0.0.1/32"
            ]
        );
        assert!(found[0].1.starts_with("ip saddr 172.17.0.0/16"));
        assert_eq!(found[1].1, "");
    }
}
