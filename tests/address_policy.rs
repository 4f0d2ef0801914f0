//! The verdict on each special address, by each policy that decides on addresses.
//!
//! `verdicts.txt` is the table of decisions: a row an address (the special-purpose registries of IANA, each encoding
//! of IPv4 in IPv6, and addresses of this host), a column a policy. A verdict that changes is a change that operators
//! notice, so it belongs in CHANGELOG.md.

use std::collections::BTreeSet;
use std::fmt::{Display, Write};
use std::net::{IpAddr, SocketAddr};

use peername_identity::Network;
use peername_intercept::authz::AccessRules;
use peername_intercept::host::HostPort;
use peername_intercept::policy::destination::{Destinations, Requested, SharedRules};
use peername_proto::{HostAddress, SourcePolicy};
use peername_proxy::policy::destination::{DestinationContext, DestinationPolicy, OwnPorts};
use peername_server::access::clients::{ClientAccess, ListOptions, RequiredTlvs};
use peername_server::access::network_set::NetworkSet;
use peername_server::destination_list::AllowedDestination;
use peername_server::own_addresses::OwnAddresses;

const VERDICTS: &str = include_str!("address_policy/verdicts.txt");
const OWN_PORT: u16 = 8443;
const EVERYTHING: &[&str] = &["0.0.0.0/0", "::/0"];
const TRUST_WORDS: [&str; 3] = ["private", "loopback", "::/0"];

#[test]
fn verdicts_are_those_of_the_table() {
    let mut rows = VERDICTS.lines().filter(|line| !line.starts_with('#'));
    let header = rows.next().expect("a header");
    let mut actual = format!("{}\n", header);
    let mut changed = String::new();
    for row in rows {
        let address = row.split_whitespace().next().expect("an address");
        let now = Policies::new().row(address);
        writeln!(actual, "{now}").unwrap();
        if now != row {
            writeln!(changed, "-{row}\n+{now}").unwrap();
        }
    }
    assert!(
        changed.is_empty(),
        "{header}\n{changed}\nthe whole table now:\n{actual}"
    );
}

/// The addresses of the imaginary host that decides.
fn host_address(ip: IpAddr) -> Option<HostAddress> {
    match ip.to_string().as_str() {
        "11.0.0.1" | "2600::1" | "127.0.0.1" | "::1" => Some(HostAddress::Own),
        "11.0.0.0" | "11.0.0.255" | "2600::" => Some(HostAddress::NetworkOrBroadcast),
        _ => None,
    }
}

struct Policies {
    own_ports: OwnPorts,
    own: OwnAddresses,
}

impl Policies {
    fn new() -> Self {
        let own = [
            "11.0.0.0",
            "11.0.0.1",
            "11.0.0.255",
            "2600::",
            "2600::1",
            "127.0.0.1",
            "::1",
        ];
        let own = own.map(|ip| ip.parse().unwrap());
        Self {
            own_ports: OwnPorts {
                ports: BTreeSet::from([OWN_PORT]),
                transparent: false,
            },
            own: OwnAddresses::fixed(own.map(|ip| (ip, host_address(ip).unwrap()))),
        }
    }

    fn row(&self, address: &str) -> String {
        let ip: IpAddr = address.parse().unwrap();
        let exact = match ip.is_ipv4() {
            true => format!("{ip}:443"),
            false => format!("[{ip}]:443"),
        };
        let exact = &[exact.as_str()];
        let cells = [
            source(SourcePolicy::Strict, ip, host_address),
            source(SourcePolicy::AllowLocal, ip, host_address),
            source(SourcePolicy::AllowReserved, ip, host_address),
            source(SourcePolicy::Any, ip, host_address),
            source(SourcePolicy::Strict, ip, |_| None),
            self.header_destination(EVERYTHING, ip, 443),
            self.header_destination(exact, ip, 443),
            self.header_destination(EVERYTHING, ip, OWN_PORT),
            self.intercept_destination(&[], ip, 443),
            self.intercept_destination(EVERYTHING, ip, 443),
            self.intercept_destination(exact, ip, 443),
            self.intercept_destination(&[], ip, OWN_PORT),
            trusted_by(ip, |word| trust(word).contains(ip)),
            trusted_by(ip, |word| is_denied(word, ip)),
            trusted_by(ip, |word| exec_trusts(word, ip)),
        ];
        let mut row = format!("{address:<42}");
        for cell in cells {
            write!(row, " {cell:<17}").unwrap();
        }
        row.trim_end().to_owned()
    }

    fn header_destination(&self, allowed: &[&str], ip: IpAddr, port: u16) -> String {
        let allowed = allowed
            .iter()
            .filter_map(|entry| entry.parse::<AllowedDestination>().ok());
        let policy = DestinationPolicy::new(allowed.collect()).expect("an entry");
        let context = DestinationContext {
            kind_of: &host_address,
            own_ports: &self.own_ports,
            source_is_trusted: false,
        };
        let verdict = policy.admit(SocketAddr::new(ip, port), context);
        cell(verdict.map_err(|refusal| refusal.reason()))
    }

    fn intercept_destination(&self, allowed: &[&str], ip: IpAddr, port: u16) -> String {
        let destinations = Destinations {
            allowed: allowed
                .iter()
                .filter_map(|entry| entry.parse::<AllowedDestination>().ok())
                .collect(),
            ports: Vec::new(),
            rules: SharedRules::default(),
            relayed: AccessRules::deny_others(Vec::new()),
            treats_loopback_as_one: false,
            own: self.own.clone(),
            listening: vec![OWN_PORT],
        };
        let to = HostPort {
            host: ip.into(),
            port,
        };
        let requested = Requested {
            to: &to,
            is_verified: true,
            is_resolved: true,
        };
        let verdict = destinations.admit(SocketAddr::new(ip, port), requested);
        cell(verdict.map_err(|denied| denied.code()))
    }
}

/// `exec` decides with the same policy, but knows no addresses of this host except loopback.
fn source(
    policy: SourcePolicy,
    ip: IpAddr,
    kind_of: impl Fn(IpAddr) -> Option<HostAddress>,
) -> String {
    let verdict = policy.admit(ip, kind_of);
    cell(verdict.map_err(|refusal| refusal.reason()))
}

fn trusted_by(ip: IpAddr, is_trusted: impl Fn(&str) -> bool) -> String {
    assert!(is_trusted("any"), "{ip}");
    let words = TRUST_WORDS.into_iter().filter(|word| is_trusted(word));
    match words.collect::<Vec<_>>().join(",") {
        none if none.is_empty() => "-".to_owned(),
        words => words.replace("private,loopback", "loopback"),
    }
}

fn trust(word: &str) -> NetworkSet {
    NetworkSet::read_required("--trust", &[word]).unwrap()
}

fn is_denied(word: &str, client: IpAddr) -> bool {
    let options = ListOptions {
        deny: vec![word.to_owned()],
        ..ListOptions::default()
    };
    let access = ClientAccess::new(options, RequiredTlvs::default()).unwrap();
    access.judge(client).is_err()
}

fn exec_trusts(word: &str, peer: IpAddr) -> bool {
    trust(word).iter().any(|network| {
        Network::new(network.addr(), network.prefix_len())
            .is_some_and(|network| network.contains(peer))
    })
}

fn cell(verdict: Result<(), impl Display>) -> String {
    match verdict {
        Ok(()) => "ok".to_owned(),
        Err(code) => code
            .to_string()
            .replace("source_", "")
            .replace("destination_", ""),
    }
}
