//! Checks that there is a listener for the traffic that TPROXY rules redirect.

use peername_proxy::routes::{self, RoutingEntry};

use super::backend_listener::{listeners_on, receivers_on};
use super::finding::Finding;

/// Looks for a socket on the port of each table that `routes add --tproxy-ports` has created. Without one the
/// rules have no effect, and clients reach whatever else listens on their port.
pub(super) fn listeners() -> Finding {
    match routes::list_filters() {
        Ok(tables) => judge(
            tables
                .iter()
                .filter_map(RoutingEntry::tproxy_port)
                .collect(),
        ),
        Err(routes::Error::NftPermission) => Finding::ok(
            CHECK,
            "not checked: its tables can be listed with CAP_NET_ADMIN only",
        ),
        Err(error) => Finding::broken(CHECK, error.to_string()),
    }
}

fn judge(ports: Vec<u16>) -> Finding {
    let is_unused =
        |port: &&u16| listeners_on(**port).is_empty() && receivers_on(**port).is_empty();
    match ports.iter().find(is_unused) {
        Some(port) => Finding::warn(
            CHECK,
            format!("rules redirect to port {port}, where nothing listens"),
            format!("start the proxy with `--listen 0.0.0.0:{port} --listen-transparent`"),
        ),
        None if ports.is_empty() => Finding::ok(CHECK, "no rules of peername's"),
        None => Finding::ok(
            CHECK,
            format!("rules redirect to {ports:?}, where something listens"),
        ),
    }
}

const CHECK: &str = "TPROXY";
