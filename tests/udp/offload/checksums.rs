//! UDP checksums of special values, which the eBPF program has to write as RFC 768 requires.

use std::net::SocketAddr;

use super::{KERNEL, UdpRig, in_kernel};
use crate::harness::addr::{
    BALANCER_V6, LISTEN_V4, LISTEN_V6, TARGET_V6, fresh_client_v4, fresh_client_v6,
};
use crate::harness::datagram::DatagramSocket;
use crate::harness::lab::Process;
use crate::harness::rig::udp::datagram_header_for;

/// Over IPv4 a datagram may come without a checksum, and goes on without one.
#[test]
fn datagram_without_a_checksum_stays_without() {
    let mut rig = UdpRig::new(&[KERNEL]);
    let client = fresh_client_v4();
    let header: String = datagram_header_for(client)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let to = LISTEN_V4.to_string();
    let args = ["-u", "-c", WITHOUT_CHECKSUM, &to, &header];
    let balancer = Process::start(&rig.lab.balancer, "/usr/bin/python3", &args);
    for _ in 0..20 {
        rig.backend_v4.expect_datagram(b"ping", client);
        rig.backend_v4.send(client, &[b"pong"]);
    }
    balancer.wait_printed("answered");
    assert!(in_kernel(&rig.stop()) > 20);
}

/// A checksum of 0 is sent as 0xffff, since 0 means that there is none, which no receiver accepts over IPv6.
#[test]
fn checksum_of_zero_is_sent_as_ffff() {
    let mut rig = UdpRig::new(&[KERNEL]);
    // Without this, checksums are left to the devices, and packets have none.
    for (host, device) in [(&rig.lab.balancer, "lan"), (&rig.lab.server, "eth0")] {
        host.run("ethtool", &["-K", device, "tx", "off"]);
    }
    let client = fresh_client_v6();
    let balancer = DatagramSocket::bind(&rig.lab.balancer, SocketAddr::new(BALANCER_V6, 0));
    let payload = (!checksum_without_two_bytes(client, TARGET_V6)).to_be_bytes();
    for _ in 0..20 {
        balancer.send(LISTEN_V6, &[&datagram_header_for(client), &payload]);
        rig.backend_v6.expect_datagram(&payload, client);
        rig.backend_v6.send(client, &[b"pong"]);
        balancer.expect_datagram(b"pong", LISTEN_V6);
    }
    assert!(in_kernel(&rig.stop()) > 20);
}

/// The sum of everything that the checksum covers (RFC 8200, section 8.1), without two bytes of payload.
fn checksum_without_two_bytes(from: SocketAddr, to: SocketAddr) -> u16 {
    let mut sum = 0_u32;
    for addr in [from, to] {
        let SocketAddr::V6(addr) = addr else {
            panic!("{addr} is not IPv6");
        };
        sum += addr.ip().segments().map(u32::from).iter().sum::<u32>();
        sum += u32::from(addr.port());
    }
    let (length, protocol) = (8 + 2, 17);
    // The length counts twice: the pseudo-header and the UDP header contain it.
    sum += 2 * length + protocol;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

const WITHOUT_CHECKSUM: &str = include_str!("checksums/without.py");
