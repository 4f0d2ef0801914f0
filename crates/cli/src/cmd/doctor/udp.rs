//! What is different with UDP.

use std::fs;
use std::net::SocketAddr;

use peername_proxy::routes::{BackendLocation, locate_backend};
use peername_sys::kernel_release;
use peername_sys::netlink::Netlink;

use super::backend_listener::receivers_on;
use super::finding::Finding;
use super::host::version;

/// Looks at the sockets of this host on the port of `target`, if it is here.
///
/// A session hears only what comes from the very address it was connected to. A server that is bound
/// to all addresses answers from whichever the routing tables choose, which on a host with several is
/// often another one.
pub(super) async fn bound(target: SocketAddr) -> Finding {
    match place(target).await {
        Ok(BackendLocation::OtherHost) => {
            Finding::ok(CHECK, format!("{target} is on another host"))
        }
        Ok(_) => judge(target, &receivers_on(target.port())),
        Err(error) => Finding::broken(CHECK, error.to_string()),
    }
}

/// A burst that the worker has no time for right now is kept there, or lost.
pub(super) fn receive_buffer() -> Finding {
    let text = fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap_or_default();
    match text.trim().parse::<u64>() {
        Ok(most) if most < ENOUGH => Finding::warn(
            "net.core.rmem_max",
            format!("{most}: a burst of UDP may overrun it (counted as receive_buffer_full)"),
            format!("`sysctl -w net.core.rmem_max={ENOUGH}`"),
        ),
        Ok(most) => Finding::ok("net.core.rmem_max", most.to_string()),
        Err(_) => Finding::ok("net.core.rmem_max", "not set"),
    }
}

async fn place(target: SocketAddr) -> peername_sys::Result<BackendLocation> {
    locate_backend(&Netlink::open()?, target).await
}

fn judge(target: SocketAddr, on_its_port: &[SocketAddr]) -> Finding {
    let bound_to_it = on_its_port.contains(&target);
    let to_all = on_its_port
        .iter()
        .find(|socket| socket.ip().is_unspecified());
    match (bound_to_it, to_all) {
        (true, _) => Finding::ok(CHECK, format!("bound to {target}")),
        (false, Some(wildcard)) => Finding::warn(
            CHECK,
            format!(
                "{wildcard}, all addresses: it may answer from another than {target}, and such an \
                 answer is lost"
            ),
            format!(
                "bind it to {target} itself: `listen {}` or the like in its configuration",
                target.ip()
            ),
        ),
        (false, None) if on_its_port.is_empty() => Finding::warn(
            CHECK,
            format!("no UDP socket here has port {}", target.port()),
            "start it, or name the port where it listens",
        ),
        (false, None) => Finding::warn(
            CHECK,
            format!(
                "port {} is bound, but not at {}",
                target.port(),
                target.ip()
            ),
            "name the address where it listens, or let it listen there",
        ),
    }
}

const CHECK: &str = "backend's UDP socket";
/// What a listener asks for.
const ENOUGH: u64 = 4 << 20;

/// Can `--data-path kernel` be had here? Its programs are loaded, and nothing is attached.
pub(super) fn data_path() -> Finding {
    let check = "--data-path kernel";
    let release = kernel_release();
    match peername_kernel::data_path::try_load() {
        // It loads before, and can't be attached.
        Ok(()) if version(&release).is_some_and(|version| version < TCX) => Finding::warn(
            check,
            format!("not to be had: it needs Linux 6.6, and this is {release}"),
            NO_MATTER,
        ),
        Ok(()) => Finding::ok(
            check,
            "to be had: steady sessions can be left to the kernel",
        ),
        Err(error) => Finding::warn(
            check,
            format!("not to be had: {:#}", anyhow::Error::new(error)),
            NO_MATTER,
        ),
    }
}

/// Since which programs can be attached as these are.
const TCX: (u32, u32) = (6, 6);
const NO_MATTER: &str = "nothing, unless you want it: UDP is served in user space (docs/udp.md)";

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(sockets: &[&str]) -> String {
        let sockets: Vec<_> = sockets.iter().map(|text| text.parse().unwrap()).collect();
        judge("127.0.0.1:53".parse().unwrap(), &sockets).to_string()
    }

    #[test]
    fn a_backend_is_to_be_bound_to_its_own_address() {
        assert!(judged(&["127.0.0.1:53", "0.0.0.0:53"]).starts_with("ok"));
        let wildcard = judged(&["0.0.0.0:53"]);
        assert!(wildcard.starts_with("warn"), "{wildcard}");
        assert!(wildcard.contains("bind it to 127.0.0.1:53"), "{wildcard}");
        assert!(judged(&["10.0.0.1:53"]).contains("not at 127.0.0.1"));
        assert!(judged(&[]).contains("no UDP socket"));
    }
}
