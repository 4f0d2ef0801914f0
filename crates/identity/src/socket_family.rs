//! Client addresses in the family of the program's socket.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Converts a client's address to the family of the program's socket.
///
/// On an IPv6 socket an IPv4 client is mapped, as the kernel maps it. On an IPv4 socket an IPv6 client can't be
/// represented: it is shown as [`pseudo_v4`], never as the proxy, because programs may trust the proxy's address.
pub fn as_socket_family(client: SocketAddr, is_ipv6: bool) -> SocketAddr {
    let port = client.port();
    match (client.ip().to_canonical(), is_ipv6) {
        (IpAddr::V4(ip), false) => SocketAddr::from((ip, port)),
        (IpAddr::V4(ip), true) => SocketAddr::from((ip.to_ipv6_mapped(), port)),
        (IpAddr::V6(ip), true) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, 0)),
        (IpAddr::V6(ip), false) => SocketAddr::from((pseudo_v4(ip), port)),
    }
}

/// A stable IPv4 address of class E (240.0.0.0/4) that stands for the /64 of an IPv6 client: the *stand-in*, Cloudflare's
/// *Pseudo IPv4*.
///
/// No header names such an address as its client, because the source policies of `exec` refuse that network. Some clouds give
/// its addresses to pods: one that connects without a header may have another client's stand-in. A site gets a /64, and its
/// hosts change their addresses within it: rate limits by address keep their meaning.
pub fn pseudo_v4(ip: Ipv6Addr) -> Ipv4Addr {
    let [network @ .., _, _, _, _, _, _, _, _] = ip.octets();
    let hash = network.iter().fold(FNV_OFFSET, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME)
    });
    // The lower 28 bits, with the upper four folded in; all ones would be the broadcast address.
    let folded = (hash ^ (hash >> 28)) & 0x0fff_ffff;
    Ipv4Addr::from_bits(0xf000_0000 | folded.min(0x0fff_fffe))
}

/// FNV-1a. Another hash function would change the addresses of clients in logs after an upgrade.
const FNV_OFFSET: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    fn as_shown(client: &str, is_ipv6: bool) -> std::string::String {
        as_socket_family(client.parse().unwrap(), is_ipv6).to_string()
    }

    #[test]
    fn clients_are_shown_in_the_family_of_the_socket() {
        assert_eq!(as_shown("192.0.2.1:5", false), "192.0.2.1:5");
        assert_eq!(as_shown("192.0.2.1:5", true), "[::ffff:192.0.2.1]:5");
        assert_eq!(as_shown("[2001:db8::1]:5", true), "[2001:db8::1]:5");
        assert_eq!(as_shown("[::ffff:192.0.2.1]:5", false), "192.0.2.1:5");
    }

    #[test]
    fn ipv6_client_of_an_ipv4_socket_has_an_address_of_its_own() {
        let pseudo = pseudo_v4("2001:db8::1".parse().unwrap());
        assert_eq!(pseudo, pseudo_v4("2001:db8::2".parse().unwrap()));
        assert_ne!(pseudo, pseudo_v4("2001:db8:1::1".parse().unwrap()));
        assert!(pseudo.octets()[0] >= 240 && !pseudo.is_broadcast());
    }
}
