//! The metadata services of clouds, which hand out credentials to any process of the host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether this is the address of a cloud's metadata service.
pub fn is_metadata(ip: IpAddr) -> bool {
    METADATA.contains(&ip.to_canonical())
}

/// They authenticate the caller by its address only. AWS (EC2, ECS, EKS), Google, Azure
/// (its agent too), OpenStack, DigitalOcean and Oracle share the first; Alibaba has its own.
const METADATA: [IpAddr; 9] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];
