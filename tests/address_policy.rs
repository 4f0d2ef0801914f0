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
    let mut actual = format!("{header}\n");
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

/// Classifies the addresses of the imaginary host that decides.
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
                is_transparent: false,
            },
            own: OwnAddresses::fixed(own.map(|ip| (ip, host_address(ip).unwrap()))),
        }
    }

    fn row(&self, address: &str) -> String {
        let ip: IpAddr = address.parse().unwrap();
        let exact = SocketAddr::new(ip, 443).to_string();
        let exact = &[exact.as_str()];
        let cells = [
            source_verdict(SourcePolicy::Strict, ip, host_address),
            source_verdict(SourcePolicy::AllowLocal, ip, host_address),
            source_verdict(SourcePolicy::AllowReserved, ip, host_address),
            source_verdict(SourcePolicy::Any, ip, host_address),
            // `exec` decides with the same policy, but knows no addresses of this host except loopback.
            source_verdict(SourcePolicy::Strict, ip, |_| None),
            self.header_destination(EVERYTHING, ip, 443),
            self.header_destination(exact, ip, 443),
            self.header_destination(EVERYTHING, ip, OWN_PORT),
            self.intercept_destination(&[], ip, 443),
            self.intercept_destination(EVERYTHING, ip, 443),
            self.intercept_destination(exact, ip, 443),
            self.intercept_destination(&[], ip, OWN_PORT),
            words_matching(ip, |word| trust(word).contains(ip)),
            words_matching(ip, |word| is_denied(word, ip)),
            words_matching(ip, |word| exec_trusts(word, ip)),
        ];
        let mut row = format!("{address:<42}");
        for cell in cells {
            write!(row, " {cell:<17}").unwrap();
        }
        row.trim_end().to_owned()
    }

    fn header_destination(&self, allowed: &[&str], ip: IpAddr, port: u16) -> String {
        let allowed = allowed_destinations(allowed).collect();
        let policy = DestinationPolicy::new(allowed).expect("an entry");
        let context = DestinationContext {
            kind_of: &host_address,
            own_ports: &self.own_ports,
            is_source_trusted: false,
        };
        let verdict = policy.admit(SocketAddr::new(ip, port), context);
        verdict_cell(verdict.map_err(|refusal| refusal.reason()))
    }

    fn intercept_destination(&self, allowed: &[&str], ip: IpAddr, port: u16) -> String {
        let destinations = Destinations {
            allowed: allowed_destinations(allowed).collect(),
            ports: Vec::new(),
            rules: SharedRules::default(),
            relayed: AccessRules::deny_others(Vec::new()),
            treats_loopback_as_one: false,
            own_addresses: self.own.clone(),
            listening: vec![OWN_PORT],
        };
        let to = HostPort {
            host: ip.into(),
            port,
        };
        let requested = Requested {
            is_verified: true,
            ..Requested::plain(&to)
        };
        let verdict = destinations.admit(SocketAddr::new(ip, port), requested);
        verdict_cell(verdict.map_err(|denied| denied.code()))
    }
}

fn allowed_destinations(entries: &[&str]) -> impl Iterator<Item = AllowedDestination> {
    entries
        .iter()
        .map(|entry| entry.parse().expect("an allowed destination"))
}

fn source_verdict(
    policy: SourcePolicy,
    ip: IpAddr,
    kind_of: impl Fn(IpAddr) -> Option<HostAddress>,
) -> String {
    let verdict = policy.admit(ip, kind_of);
    verdict_cell(verdict.map_err(|refusal| refusal.reason()))
}

/// The words whose networks contain an address. `private` includes `loopback` and is left out beside it.
fn words_matching(ip: IpAddr, matches: impl Fn(&str) -> bool) -> String {
    assert!(matches("any"), "{ip}");
    let words: Vec<_> = TRUST_WORDS
        .into_iter()
        .filter(|word| matches(word))
        .collect();
    if words.is_empty() {
        return "-".to_owned();
    }
    words.join(",").replace("private,loopback", "loopback")
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

fn verdict_cell(verdict: Result<(), impl Display>) -> String {
    match verdict {
        Ok(()) => "ok".to_owned(),
        Err(code) => code
            .to_string()
            .replace("source_", "")
            .replace("destination_", ""),
    }
}
