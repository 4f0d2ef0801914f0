//! Checks which addresses the backend listens on, by the kernel's socket tables, not the backend's configuration.

use std::net::SocketAddr;

use crate::finding::Finding;
use crate::listener::local_target::examine_if_local;
use crate::listener::socket_table::{accepts, listeners_on};

/// Checks the listeners of this host on the port of `target`, if that is an address of this host.
pub async fn check(target: SocketAddr) -> Finding {
    examine_if_local(CHECK, target, || {
        judge(target, &listeners_on(target.port()))
    })
    .await
}

fn judge(target: SocketAddr, on_its_port: &[SocketAddr]) -> Finding {
    if on_its_port.is_empty() {
        return Finding::warn(
            CHECK,
            format!(
                "nothing here listens on port {}, yet {target} accepts",
                target.port()
            ),
            "find out what answers there: `nft list ruleset`, or another network namespace",
        );
    }
    // Listeners on this port that don't accept connections to `target` may be other programs' or the proxy's.
    let mut accepting = on_its_port.to_vec();
    accepting.retain(|listener| accepts(*listener, target));
    let seen = join(&accepting);
    if accepting.is_empty() {
        return Finding::warn(
            CHECK,
            format!("{}: not {target}", join(on_its_port)),
            "name the address that it listens on, or let it listen on that one",
        );
    }
    if !target.ip().is_loopback() {
        return Finding::warn(
            CHECK,
            format!(
                "{seen}: with the routing rule for replies of {target} (`peername routes show`), a client that connects there \
                 directly gets no answer"
            ),
            "let it listen on a loopback address, and name that one",
        );
    }
    if accepting
        .iter()
        .any(|listener| !listener.ip().is_loopback())
    {
        return Finding::warn(
            CHECK,
            format!("{seen}: it can be reached past the proxy"),
            "let the backend listen on loopback addresses only, or close its port to the network",
        );
    }
    Finding::ok(CHECK, seen)
}

fn join(listeners: &[SocketAddr]) -> String {
    let texts: Vec<_> = listeners.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

const CHECK: &str = "backend's listener";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backend_should_listen_on_loopback_addresses_only() {
        let target = "127.0.0.1:443";
        let ok = "ok    backend's listener: 127.0.0.1:443";
        let past_the_proxy = "it can be reached past the proxy";
        for (target, listeners, expected) in [
            (target, &["127.0.0.1:443", "[::1]:443"][..], ok),
            // Another program on the same port is not the backend.
            (target, &["127.0.0.1:443", "10.0.0.7:443"], ok),
            (target, &["0.0.0.0:443"], past_the_proxy),
            (target, &["[::]:443"], past_the_proxy),
            (target, &["127.0.0.2:443"], "not 127.0.0.1:443"),
            ("[::1]:443", &["0.0.0.0:443"], "not [::1]:443"),
        ] {
            let listeners: Vec<_> = listeners.iter().map(|text| text.parse().unwrap()).collect();
            let judged = judge(target.parse().unwrap(), &listeners).to_string();
            let is_warned = judged.starts_with("warn") && judged.contains(expected);
            assert!(judged == expected || is_warned, "{judged}");
        }
    }
}
