//! The routing rule that a backend needs, by its location.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use peername_sys::Result as SysResult;
use peername_sys::Transport;
use peername_sys::netlink::{Netlink, Rule, Selector, Traffic};

use super::error::Error;
use super::location::{BackendLocation, locate_backend};
use super::table_slot::{PROTOCOL, TableSlot};
use crate::backend::Backend;

/// The rule for one backend, without the numbers of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BackendRule {
    pub(super) target: SocketAddr,
    selector: Selector,
}

impl BackendRule {
    /// The rules for a backend at this location. For a backend on another host there are none, because no rule here would help.
    ///
    /// On loopback, port 0 stands for all ports, and so does 65535, because the kernel refuses that port in a rule.
    pub(super) fn for_backend(backend: Backend, location: BackendLocation) -> Vec<Self> {
        let rule = |from: IpAddr, prefix_len, traffic| Self {
            target: backend.address,
            selector: Selector::From {
                from,
                prefix_len,
                traffic,
            },
        };
        match location {
            BackendLocation::Loopback(ip) => {
                let (from, prefix_len) = match ip {
                    IpAddr::V4(_) => (Ipv4Addr::new(127, 0, 0, 0).into(), 8),
                    IpAddr::V6(_) => (Ipv6Addr::LOCALHOST.into(), 128),
                };
                let traffic: &[Traffic] = match (backend.address.port(), backend.transport) {
                    (0 | u16::MAX, _) => &[Traffic::Any],
                    (port, Transport::Tcp) => &[Traffic::Port(Transport::Tcp, port)],
                    // An ICMP error that reports a closed port has no source port.
                    (port, Transport::Udp) => &[Traffic::Port(Transport::Udp, port), Traffic::Icmp],
                };
                traffic
                    .iter()
                    .map(|&traffic| rule(from, prefix_len, traffic))
                    .collect()
            }
            BackendLocation::ThisHost(address) => {
                let prefix_len = if address.is_ipv4() { 32 } else { 128 };
                let traffic = Traffic::Port(backend.transport, address.port());
                vec![rule(address.ip(), prefix_len, traffic)]
            }
            BackendLocation::OtherHost => Vec::new(),
        }
    }

    pub(super) fn in_slot(&self, slot: TableSlot) -> Rule {
        Rule {
            selector: self.selector,
            table: slot.table(),
            priority: slot.priority(),
            protocol: PROTOCOL,
        }
    }
}

/// The rules for these backends, in their order; backends that need the same rule share it.
///
/// # Errors
///
/// [`Error::OtherHost`] for the first backend that is on another host, unless replies are recognized by a mark.
pub(super) async fn rules_for(
    netlink: &Netlink,
    backends: &[Backend],
    is_marked: bool,
) -> Result<Vec<BackendRule>, Error> {
    let mut rules: Vec<BackendRule> = Vec::new();
    for &backend in backends {
        let location = locate_backend(netlink, backend.address).await?;
        if location == BackendLocation::OtherHost && !is_marked {
            return Err(Error::OtherHost(backend.address));
        }
        for rule in BackendRule::for_backend(backend, location) {
            if !rules.iter().any(|other| rule.selector == other.selector) {
                rules.push(rule);
            }
        }
    }
    Ok(rules)
}

/// Whether a rule of peername's matches the replies of this backend, which has to be on this host.
pub(crate) async fn has_rule(netlink: &Netlink, backend: Backend) -> SysResult<bool> {
    let rules = netlink.rules(PROTOCOL).await?;
    Ok(rules.iter().any(|rule| covers(rule.selector, backend)))
}

/// Whether the rules for the backends `routed` apply to `backend`, too: on loopback they apply to all addresses of a family,
/// and those for port 0 or 65535 to all ports of both transports.
pub fn rules_apply_to(routed: &[Backend], backend: Backend) -> bool {
    let (ip, port) = (backend.address.ip(), backend.address.port());
    routed.iter().any(|&other| {
        let other_ip = other.address.ip();
        let are_loopback =
            ip.is_loopback() && other_ip.is_loopback() && ip.is_ipv4() == other_ip.is_ipv4();
        let is_same_port = other.transport == backend.transport && other.address.port() == port;
        let is_any_port = matches!(other.address.port(), 0 | u16::MAX);
        other == backend || are_loopback && (is_same_port || is_any_port)
    })
}

fn covers(selector: Selector, backend: Backend) -> bool {
    let Selector::From {
        from,
        prefix_len,
        traffic,
    } = selector
    else {
        return false;
    };
    let Backend { address, transport } = backend;
    let is_address_covered =
        IpNet::new(from, prefix_len).is_ok_and(|network| network.contains(&address.ip()));
    let is_traffic_covered = match traffic {
        Traffic::Any => true,
        Traffic::Port(of_rule, port) => of_rule == transport && port == address.port(),
        Traffic::Icmp => false,
    };
    is_address_covered && is_traffic_covered
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules for a backend, without what all have in common.
    fn rules(target: &str, location: BackendLocation) -> String {
        let rules = BackendRule::for_backend(target.parse().unwrap(), location);
        let selectors = rules.iter().map(|rule| {
            let rule = rule.in_slot(TableSlot::ADMINISTRATOR).to_string();
            let selector = rule.strip_prefix("2110: from ").unwrap();
            let selector = selector.strip_suffix(" lookup 21100 proto 211");
            selector.unwrap().to_owned()
        });
        selectors.collect::<Vec<_>>().join(", ")
    }

    fn loopback(ip: &str) -> BackendLocation {
        BackendLocation::Loopback(ip.parse().unwrap())
    }

    #[test]
    fn rule_on_loopback_matches_all_its_addresses_and_any_other_rule_the_port_of_one() {
        for (target, ip, expected) in [
            (
                "127.0.0.5:80",
                "127.0.0.5",
                "127.0.0.0/8 iif lo ipproto tcp sport 80",
            ),
            ("[::1]:80", "::1", "::1/128 iif lo ipproto tcp sport 80"),
            // UDP needs ICMP.
            (
                "[::1]:53/udp",
                "::1",
                "::1/128 iif lo ipproto udp sport 53, ::1/128 iif lo ipproto ipv6-icmp",
            ),
            // Ports 0 and 65535 stand for all.
            ("127.0.0.1:0", "127.0.0.1", "127.0.0.0/8 iif lo"),
            ("127.0.0.1:65535", "127.0.0.1", "127.0.0.0/8 iif lo"),
            ("127.0.0.1:0/udp", "127.0.0.1", "127.0.0.0/8 iif lo"),
        ] {
            assert_eq!(rules(target, loopback(ip)), expected, "{target}");
        }
        for (target, address, expected) in [
            (
                "10.0.0.5:80",
                "10.0.0.5:80",
                "10.0.0.5/32 iif lo ipproto tcp sport 80",
            ),
            (
                "[fd00::5]:53/udp",
                "[fd00::5]:53",
                "fd00::5/128 iif lo ipproto udp sport 53",
            ),
        ] {
            let this_host = BackendLocation::ThisHost(address.parse().unwrap());
            assert_eq!(rules(target, this_host), expected, "{target}");
        }
        assert_eq!(rules("10.0.0.5:80", BackendLocation::OtherHost), "");
    }

    #[test]
    fn loopback_rule_covers_its_ports_on_loopback_only() {
        let selector = |target: &str, location| {
            let rules = BackendRule::for_backend(target.parse().unwrap(), location);
            rules.first().expect("a rule").selector
        };
        let of_port = selector("127.0.0.1:80", loopback("127.0.0.1"));
        let of_all_ports = selector("127.0.0.1:0", loopback("127.0.0.1"));
        for (backend, is_covered) in [
            ("127.0.0.9:80", true),
            ("127.0.0.1:81", false),
            ("127.0.0.1:80/udp", false),
        ] {
            let backend = backend.parse().unwrap();
            assert_eq!(covers(of_port, backend), is_covered, "{backend}");
            assert!(covers(of_all_ports, backend), "{backend}");
        }
        assert!(!covers(of_all_ports, "10.0.0.1:80".parse().unwrap()));
    }
}
