//! The routing rule that a backend needs, by its location.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use peername_sys::netlink::{Netlink, Rule, Selector};

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
    /// The rule for a backend at this location. `None` on another host, for which no rule here helps.
    pub(super) fn new(backend: Backend, location: BackendLocation) -> Option<Self> {
        let (from, prefix, port) = match location {
            BackendLocation::Loopback(IpAddr::V4(_)) => {
                (Ipv4Addr::new(127, 0, 0, 0).into(), 8, None)
            }
            BackendLocation::Loopback(IpAddr::V6(_)) => (Ipv6Addr::LOCALHOST.into(), 128, None),
            BackendLocation::ThisHost(address) => (
                address.ip(),
                if address.is_ipv4() { 32 } else { 128 },
                Some((backend.transport, address.port())),
            ),
            BackendLocation::OtherHost => return None,
        };
        Some(Self {
            target: backend.address,
            selector: Selector::From { from, prefix, port },
        })
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
/// [`Error::OtherHost`] for the first backend that is on another host.
pub(super) async fn rules_for(
    netlink: &Netlink,
    backends: &[Backend],
) -> Result<Vec<BackendRule>, Error> {
    let mut rules: Vec<BackendRule> = Vec::new();
    for &backend in backends {
        let location = locate_backend(netlink, backend.address).await?;
        let rule = BackendRule::new(backend, location).ok_or(Error::OtherHost(backend.address))?;
        if !rules.iter().any(|other| rule.selector == other.selector) {
            rules.push(rule);
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(target: &str, location: BackendLocation) -> Option<String> {
        let rule = BackendRule::new(target.parse::<Backend>().unwrap(), location)?;
        Some(rule.in_slot(TableSlot::PERSISTENT).to_string())
    }

    #[test]
    fn loopback_rule_matches_all_of_it() {
        let location = |ip: &str| BackendLocation::Loopback(ip.parse().unwrap());
        assert_eq!(
            rule("127.0.0.5:80", location("127.0.0.5")).unwrap(),
            "2110: from 127.0.0.0/8 iif lo lookup 21100 proto 211"
        );
        assert_eq!(
            rule("[::1]:80", location("::1")).unwrap(),
            "2110: from ::1/128 iif lo lookup 21100 proto 211"
        );
    }

    #[test]
    fn rule_for_another_address_matches_the_port_only() {
        let location = |addr: &str| BackendLocation::ThisHost(addr.parse().unwrap());
        assert_eq!(
            rule("10.0.0.5:80", location("10.0.0.5:80")).unwrap(),
            "2110: from 10.0.0.5/32 iif lo ipproto tcp sport 80 lookup 21100 proto 211"
        );
        assert_eq!(
            rule("[fd00::5]:80", location("[fd00::5]:80")).unwrap(),
            "2110: from fd00::5/128 iif lo ipproto tcp sport 80 lookup 21100 proto 211"
        );
    }

    #[test]
    fn udp_has_a_rule_of_its_own() {
        let location = BackendLocation::ThisHost("10.0.0.5:53".parse().unwrap());
        assert_eq!(
            rule("10.0.0.5:53/udp", location).unwrap(),
            "2110: from 10.0.0.5/32 iif lo ipproto udp sport 53 lookup 21100 proto 211"
        );
        let loopback = BackendLocation::Loopback("::1".parse().unwrap());
        assert_eq!(rule("[::1]:53/udp", loopback), rule("[::1]:53", loopback));
    }

    #[test]
    fn backend_on_another_host_has_no_rule() {
        assert_eq!(rule("10.0.0.5:80", BackendLocation::OtherHost), None);
    }
}
