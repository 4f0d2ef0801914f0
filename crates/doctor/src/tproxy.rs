//! Checks that there is a listener for the traffic that TPROXY rules redirect.

use std::fs;
use std::net::SocketAddr;

use peername_proxy::routes::{self, LOCAL_FWMARK, RoutingEntry};

use crate::finding::Finding;
use crate::listener::socket_table::{listeners_on, receivers_on};

/// Looks for a socket on the port of each table that `routes add --tproxy-ports` has created. Without such a socket the
/// rules have no effect, and clients reach whatever else listens on their port.
pub fn listeners() -> Finding {
    match routes::list_filters() {
        Ok(tables) => judge(
            tables
                .iter()
                .filter_map(RoutingEntry::tproxy_port)
                .collect(),
        ),
        Err(routes::Error::NftPermission) => Finding::ok(
            CHECK,
            "not checked, nor is port `same` of --target: peername's tables can be listed with CAP_NET_ADMIN only",
        ),
        Err(error) => Finding::broken(CHECK, error.to_string()),
    }
}

/// Whether rules that `routes add --tproxy-ports` has created redirect to one of these listeners; also true if the rules can't
/// be listed, because that needs CAP_NET_ADMIN.
pub fn redirects_to(listen: &[SocketAddr]) -> bool {
    match routes::list_filters() {
        Ok(tables) => tables
            .iter()
            .filter_map(RoutingEntry::tproxy_port)
            .any(|port| listen.iter().any(|address| address.port() == port)),
        Err(_) => true,
    }
}

/// Warns of ufw where rules redirect packets to networks that are routed to this host: the chain `ufw-not-local` drops
/// packets to other addresses than this host's own.
pub fn firewall() -> Option<Finding> {
    let redirects_networks = routes::list_filters().is_ok_and(|tables| {
        tables
            .iter()
            .any(|table| table.tproxy_port().is_some() && table.sets_mark())
    });
    let is_enabled =
        fs::read_to_string("/etc/ufw/ufw.conf").is_ok_and(|text| is_ufw_enabled(&text));
    (redirects_networks && is_enabled).then(|| {
        Finding::warn(
            CHECK,
            "ufw drops packets to networks that are routed to this host (chain ufw-not-local)",
            format!(
                "`-A ufw-before-input -m mark --mark {LOCAL_FWMARK:#x} -j ACCEPT` in /etc/ufw/before.rules, before the \
                 line with ufw-not-local, and likewise in before6.rules; then `ufw reload`"
            ),
        )
    })
}

fn is_ufw_enabled(config: &str) -> bool {
    config.lines().any(|line| line.trim() == "ENABLED=yes")
}

fn judge(ports: Vec<u16>) -> Finding {
    let is_unused =
        |port: &&u16| listeners_on(**port).is_empty() && receivers_on(**port).is_empty();
    match ports.iter().find(is_unused) {
        Some(port) => Finding::warn(
            CHECK,
            format!("rules redirect to port {port}, where nothing listens"),
            format!(
                "start the proxy with `--listen 0.0.0.0:{port} --listen-transparent`, or, if its target has port \
                 `same`, with an address of this host instead of 0.0.0.0"
            ),
        ),
        None if ports.is_empty() => Finding::ok(CHECK, "peername has no rules"),
        None => Finding::ok(
            CHECK,
            format!("rules redirect to {ports:?}, where something listens"),
        ),
    }
}

const CHECK: &str = "TPROXY";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ufw_is_enabled_by_a_line_of_its_configuration() {
        assert!(is_ufw_enabled("# comment\nENABLED=yes\nLOGLEVEL=low\n"));
        assert!(!is_ufw_enabled("# ENABLED=yes\nENABLED=no\n"));
    }
}
