//! Checks for UDP: the backend's socket, the receive buffer, the data path in the kernel.

use std::net::SocketAddr;

use peername_daemon::usage::error_text::with_causes;
use peername_sys::kernel_release;

use crate::finding::Finding;
use crate::host::read_number;
use crate::listener::is_running;
use crate::listener::local_target::examine_if_local;
use crate::listener::socket_table::{Holder, accepts, receivers_of_others};
use crate::version::parse_version;

/// Checks that the backend's socket is bound to the address of `target`, if that is this host's.
///
/// A session's socket is connected, and receives only datagrams from the address it is connected to. A server that is
/// bound to all addresses replies from the address that the routing tables choose, unless it uses IP_PKTINFO, which can't be
/// seen from outside.
pub async fn bound(target: SocketAddr) -> Finding {
    examine_if_local(CHECK, target, || {
        judge(target, &receivers_of_others(target.port(), is_proxy))
    })
    .await
}

/// Whether this is a proxy, whose listener may have the backend's port, and is not the backend.
fn is_proxy(process: &Holder) -> bool {
    is_running(process, "proxy")
}

/// Checks the limit of the receive buffer, which holds a burst until the worker reads it. What does not fit is lost.
pub fn receive_buffer() -> Finding {
    match read_number("/proc/sys/net/core/rmem_max") {
        Some(max) if max < RECEIVE_BUFFER => Finding::warn(
            "net.core.rmem_max",
            format!("{max}: a burst of UDP may overrun it (counted as receive_buffer_full)"),
            format!("`sysctl -w net.core.rmem_max={RECEIVE_BUFFER}`"),
        ),
        Some(max) => Finding::ok("net.core.rmem_max", max.to_string()),
        None => Finding::ok("net.core.rmem_max", "not set"),
    }
}

/// Checks whether `--data-path kernel` is available: loads its programs, and attaches none.
pub fn data_path() -> Finding {
    let check = "--data-path kernel";
    let release = kernel_release();
    match peername_kernel::data_path::try_load() {
        // Older kernels load the programs, but can't attach them.
        Ok(()) if parse_version(&release).is_some_and(|version| version < TCX) => Finding::warn(
            check,
            format!("not available: it needs Linux 6.6, and this is {release}"),
            OPTIONAL,
        ),
        Ok(()) => Finding::ok(
            check,
            "available: steady sessions can be offloaded to the kernel",
        ),
        Err(error) => Finding::warn(
            check,
            format!("not available: {}", with_causes(&error.into())),
            OPTIONAL,
        ),
    }
}

fn judge(target: SocketAddr, on_its_port: &[SocketAddr]) -> Finding {
    let receiving: Vec<_> = on_its_port
        .iter()
        .filter(|socket| accepts(**socket, target))
        .collect();
    if receiving.iter().any(|socket| !socket.ip().is_unspecified()) {
        return Finding::ok(CHECK, format!("bound to {target}"));
    }
    if let Some(wildcard) = receiving.first() {
        return Finding::warn(
            CHECK,
            format!(
                "{wildcard}, all addresses: it may reply from another address than {target}, and such a \
                 reply is lost"
            ),
            format!(
                "bind it to {target} itself: `listen {}` or the like in its configuration; not needed if it replies from \
                 the address that a request was sent to (IP_PKTINFO), as dnsmasq does",
                target.ip()
            ),
        );
    }
    if on_its_port.is_empty() {
        let seen = format!("no server here has UDP port {}", target.port());
        if !target.ip().is_loopback() {
            let remedy = "start it, or name the port that it is bound to; fine if `nft list ruleset` redirects it to another network namespace";
            return Finding::warn(CHECK, seen, remedy);
        }
        return Finding::fail(
            CHECK,
            seen,
            "start it, or name the port that it is bound to",
        );
    }
    Finding::fail(
        CHECK,
        format!(
            "port {} is bound, but not at {}",
            target.port(),
            target.ip()
        ),
        "name the address that it is bound to, or bind it to that one",
    )
}

const CHECK: &str = "backend's UDP socket";
/// The receive buffer that a listener requests.
const RECEIVE_BUFFER: u64 = 4 << 20;
/// The first version that has TCX, by which the programs are attached.
const TCX: (u32, u32) = (6, 6);
const OPTIONAL: &str = "nothing, unless you want it: UDP is served in user space (docs/udp.md)";

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(target: &str, sockets: &[&str]) -> String {
        let sockets: Vec<_> = sockets.iter().map(|text| text.parse().unwrap()).collect();
        judge(target.parse().unwrap(), &sockets).to_string()
    }

    #[test]
    fn backend_has_to_be_bound_to_its_own_address() {
        let target = "127.0.0.1:53";
        assert!(judged(target, &["127.0.0.1:53", "0.0.0.0:53"]).starts_with("ok"));
        let wildcard = judged(target, &["0.0.0.0:53"]);
        assert!(wildcard.starts_with("warn"), "{wildcard}");
        assert!(wildcard.contains("bind it to 127.0.0.1:53"), "{wildcard}");
        for other_address in ["10.0.0.1:53", "[::1]:53"] {
            let judged = judged(target, &[other_address]);
            assert!(judged.starts_with("FAIL"), "{judged}");
            assert!(judged.contains("not at 127.0.0.1"), "{judged}");
        }
        let ipv4_wildcard = judged("[::1]:53", &["0.0.0.0:53"]);
        assert!(ipv4_wildcard.contains("not at ::1"), "{ipv4_wildcard}");
        assert!(judged(target, &[]).starts_with("FAIL  backend's UDP socket: no server here"));
    }
}
