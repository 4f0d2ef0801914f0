//! Checks which addresses the backend listens on, by the kernel's socket tables, not the backend's configuration.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use peername_proxy::routes::{BackendLocation, locate_backend};
use peername_sys::netlink::Netlink;

use super::finding::Finding;

/// Checks the listeners of this host on the port of `target`, if that is an address of this host.
pub(super) async fn check(target: SocketAddr) -> Finding {
    if_here(CHECK, target, || {
        judge(target, &listeners_on(target.port()))
    })
    .await
}

/// What `examine` finds, if `target` is an address of this host.
pub(super) async fn if_here(
    check: &'static str,
    target: SocketAddr,
    examine: impl FnOnce() -> Finding,
) -> Finding {
    match location(target).await {
        Ok(BackendLocation::OtherHost) => {
            Finding::ok(check, format!("{target} is on another host"))
        }
        Ok(_) => examine(),
        Err(error) => Finding::broken(check, error.to_string()),
    }
}

async fn location(target: SocketAddr) -> peername_sys::Result<BackendLocation> {
    locate_backend(&Netlink::open()?, target).await
}

fn judge(target: SocketAddr, on_its_port: &[SocketAddr]) -> Finding {
    let seen = on_its_port
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ");
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
    if !on_its_port
        .iter()
        .any(|listener| accepts(*listener, target))
    {
        return Finding::warn(
            CHECK,
            format!("{seen}: not {target}"),
            "name the address that it listens on, or let it listen on that one",
        );
    }
    if !target.ip().is_loopback() {
        return Finding::warn(
            CHECK,
            format!(
                "{seen}: with the rule for {target}, a client that connects there directly gets no answer"
            ),
            "let it listen on a loopback address, and name that one",
        );
    }
    // Others on this port may be other programs.
    if on_its_port
        .iter()
        .any(|listener| accepts(*listener, target) && !listener.ip().is_loopback())
    {
        return Finding::warn(
            CHECK,
            format!("{seen}: it can be reached past the proxy"),
            "let the backend listen on loopback addresses only, or close its port to the network",
        );
    }
    Finding::ok(CHECK, seen)
}

/// Whether the socket receives what is sent to `target`. `[::]` is assumed to receive IPv4 too, as it does without
/// IPV6_V6ONLY. The kernel's tables have no scope of a link-local address.
pub(super) fn accepts(listener: SocketAddr, target: SocketAddr) -> bool {
    match listener {
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => true,
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => target.is_ipv4(),
        _ => listener.ip() == target.ip(),
    }
}

/// The addresses of this network namespace's TCP listeners on this port.
pub(super) fn listeners_on(port: u16) -> Vec<SocketAddr> {
    sockets_on(port, &["tcp", "tcp6"], LISTEN)
}

/// The addresses of this network namespace's unconnected UDP sockets on this port.
pub(super) fn receivers_on(port: u16) -> Vec<SocketAddr> {
    sockets_on(port, &["udp", "udp6"], UNCONNECTED)
}

fn sockets_on(port: u16, tables: &[&str], state: &str) -> Vec<SocketAddr> {
    let socket = |line: &str| socket_in_state(line, state);
    tables
        .iter()
        .filter_map(|table| fs::read_to_string(format!("/proc/thread-self/net/{table}")).ok())
        .flat_map(|table| table.lines().filter_map(socket).collect::<Vec<_>>())
        .filter(|address| address.port() == port)
        .collect()
}

/// Parses a line of `/proc/net/tcp`: `sl local_address rem_address st …` (proc(5)). Addresses are words in
/// this machine's byte order.
fn socket_in_state(line: &str, state: &str) -> Option<SocketAddr> {
    let mut columns = line.split_whitespace();
    let (address, port) = columns.nth(1)?.split_once(':')?;
    if columns.nth(1)? != state {
        return None;
    }
    let mut bytes = [0; 16];
    for (part, word) in bytes.chunks_exact_mut(4).zip(address.as_bytes().chunks(8)) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        part.copy_from_slice(&word.to_ne_bytes());
    }
    let ip: IpAddr = match address.len() {
        8 => Ipv4Addr::from([bytes[0], bytes[1], bytes[2], bytes[3]]).into(),
        32 => Ipv6Addr::from(bytes).into(),
        _ => return None,
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    // A socket of IPv6 may be bound to an address of IPv4, as Java's are.
    Some(SocketAddr::new(ip.to_canonical(), port))
}

const CHECK: &str = "backend's listener";

/// TCP_LISTEN in the kernel's list of states.
const LISTEN: &str = "0A";
/// TCP_CLOSE, which a UDP socket is in until it is connected.
const UNCONNECTED: &str = "07";

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(target: &str, listeners: &[&str]) -> String {
        let listeners: Vec<_> = listeners.iter().map(|text| text.parse().unwrap()).collect();
        judge(target.parse().unwrap(), &listeners).to_string()
    }

    #[test]
    fn backend_on_loopback_only_is_ok() {
        assert_eq!(
            judged("127.0.0.1:443", &["127.0.0.1:443", "[::1]:443"]),
            "ok    backend's listener: 127.0.0.1:443, [::1]:443"
        );
    }

    #[test]
    fn another_program_on_the_same_port_is_not_the_backend() {
        let judged = judged("127.0.0.1:443", &["127.0.0.1:443", "10.0.0.7:443"]);
        assert!(judged.starts_with("ok"), "{judged}");
    }

    #[test]
    fn a_backend_on_every_address_can_be_reached_past_the_proxy() {
        for everywhere in ["0.0.0.0:443", "[::]:443"] {
            let judged = judged("127.0.0.1:443", &[everywhere]);
            assert!(judged.starts_with("warn"), "{judged}");
            assert!(judged.contains("past the proxy"), "{judged}");
        }
    }

    #[test]
    fn a_listener_elsewhere_is_not_the_backend() {
        for (target, listener) in [
            ("127.0.0.1:443", "127.0.0.2:443"),
            ("[::1]:443", "0.0.0.0:443"),
        ] {
            let judged = judged(target, &[listener]);
            assert!(judged.contains(&format!("not {target}")), "{judged}");
        }
    }

    #[test]
    fn real_listeners_are_found() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let socket = std::net::TcpListener::bind(address).unwrap();
            let address = socket.local_addr().unwrap();
            assert_eq!(listeners_on(address.port()), [address]);
        }
    }

    #[test]
    fn ipv4_address_of_an_ipv6_socket_is_one_of_ipv4() {
        let line =
            "   0: 0000000000000000FFFF00000100007F:1F90 00000000000000000000000000000000:0000 0A";
        let found = socket_in_state(line, LISTEN).unwrap();
        assert_eq!(found.to_string(), "127.0.0.1:8080");
    }

    #[test]
    fn lines_that_are_no_listener_are_skipped() {
        for line in [
            "",
            "  sl  local_address rem_address   st",
            "   0: 0100007F:01BB 0100007F:C350 01 00000000:00000000",
            "   0: 0100007F 00000000:0000 0A",
            "   0: 0100:01BB 00000000:0000 0A",
        ] {
            assert_eq!(socket_in_state(line, LISTEN), None, "{line}");
        }
    }
}
