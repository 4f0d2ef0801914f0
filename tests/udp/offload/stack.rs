//! The eBPF program must not bypass what the network stack does for user space: routes, filters, address
//! translation.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use super::{KERNEL, converse, in_kernel, serve_until_offloaded};
use crate::harness::addr::{
    BALANCER_V4, LISTEN_V4, TARGET_V4, TARGET_V6, fresh_client_v4, fresh_client_v6, v4,
};
use crate::harness::datagram::DatagramSocket;
use crate::harness::lab::{Host, Lab};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::udp::{UdpRig, datagram_header_for};

/// A reverse path filter on all devices would drop what the eBPF program sends from spoofed addresses. Once it is set,
/// sessions return to user space.
#[test]
fn reverse_path_filter_returns_sessions_to_user_space() {
    for filter in ["1", "2"] {
        let mut rig = UdpRig::new(&[KERNEL]);
        let client = fresh_client_v4();
        serve_until_offloaded(&rig, client);
        rig.lab.server.sysctl("net.ipv4.conf.all.rp_filter", filter);
        thread::sleep(UNTIL_NOTICED);
        for _ in 0..20 {
            rig.round_trip(client);
            rig.round_trip(fresh_client_v6());
        }
        let totals = rig.stop();
        assert!((1..20).contains(&in_kernel(&totals)), "{totals}");
    }
}

/// The eBPF program does not see packets as the listener does behind a NAT rule in front of the listener, and with a balancer
/// on this host that sends to an address of the host other than loopback. No datagram of such sessions is lost.
#[test]
fn offload_loses_nothing_behind_nat_or_a_local_balancer() {
    let lab = Lab::new();
    lab.server.nft(
        "table ip nat {
            chain pre {
                type nat hook prerouting priority dstnat
                udp dport 443 redirect to :8443
            }
        }",
    );
    let backends = [TARGET_V4, TARGET_V6].map(|addr| DatagramSocket::bind(&lab.server, addr));
    let mut proxy = Peername::udp_proxy(&lab, &[], &[KERNEL]);
    let v6_own = "[fd81::1]:8443".parse().expect("an address");
    for (host, from, to, client) in [
        (
            &lab.balancer,
            BALANCER_V4,
            v4([10, 81, 0, 1], 443),
            fresh_client_v4(),
        ),
        (&lab.server, LISTEN_V4.ip(), LISTEN_V4, fresh_client_v4()),
        (
            &lab.server,
            "fd81::1".parse().expect("an address"),
            v6_own,
            fresh_client_v6(),
        ),
    ] {
        let balancer = DatagramSocket::bind(host, SocketAddr::new(from, 0));
        let backend = &backends[usize::from(client.is_ipv6())];
        converse(&balancer, to, "each", client, backend);
    }
    let totals = proxy.stop();
    assert_eq!(totals["datagrams_dropped"], "", "{totals}");
}

/// Replies follow the routes, in packets of a size that fits, even when both change during a session.
#[test]
fn offload_follows_changed_routes_and_mtu() {
    let mut rig = UdpRig::new(&[KERNEL]);
    let client = fresh_client_v4();
    serve_until_offloaded(&rig, client);
    let large = vec![9; 1400];
    let exchange = || {
        rig.assert_delivered(&datagram_header_for(client), b"large?", client);
        rig.assert_reply(client, &large);
    };
    exchange();
    // Counts the packets that a device of the balancer receives for ten large replies and ten small ones.
    let count_packets_by = |device| {
        let before = received_by(&rig.lab.balancer, device);
        for _ in 0..10 {
            exchange();
            rig.round_trip(client);
        }
        received_by(&rig.lab.balancer, device) - before
    };
    // A route with a smaller MTU: larger datagrams are sent in fragments.
    rig.lab
        .server
        .ip("route replace 10.81.0.0/24 dev eth0 src 10.81.0.1 mtu 1300");
    thread::sleep(UNTIL_NOTICED);
    let packets = count_packets_by("lan");
    assert!(packets >= 30, "{packets} packets");
    // A route by another device.
    rig.lab.balancer.add_veth("lan2", &rig.lab.server, "eth1");
    rig.lab.balancer.add_addresses("lan2", &["10.83.0.2/24"]);
    rig.lab.server.add_addresses("eth1", &["10.83.0.1/24"]);
    rig.lab.balancer.sysctl("net.ipv4.conf.all.rp_filter", "0");
    rig.lab
        .server
        .ip("route replace 10.81.0.2/32 via 10.83.0.2 dev eth1 src 10.81.0.1");
    thread::sleep(UNTIL_NOTICED);
    let by_lan2 = count_packets_by("lan2");
    assert!(by_lan2 >= 20, "{by_lan2} packets");
    let totals = rig.stop();
    assert_eq!(totals["datagrams_dropped"], "", "{totals}");
    assert!(in_kernel(&totals) > 10, "{totals}");
}

/// Offloaded requests have the mark of --mark, so that rules match them.
#[test]
fn offloaded_requests_are_marked() {
    let mut rig = UdpRig::new(&[KERNEL, "--mark=7"]);
    rig.lab.server.nft(
        "table ip filter {
            chain in {
                type filter hook input priority filter
                udp dport 9000 meta mark != 7 drop
            }
        }",
    );
    let client = fresh_client_v4();
    (0..20).for_each(|_| rig.round_trip(client));
    assert!(in_kernel(&rig.stop()) > 20);
}

/// When another program resets loopback's settings, all sessions return to user space; later they are
/// offloaded again.
#[test]
fn changed_settings_return_sessions_to_user_space() {
    let mut rig = UdpRig::new(&[KERNEL]);
    let client = fresh_client_v4();
    for (setting, off, on) in [
        ("net.ipv4.conf.lo.accept_local", "0", "1"),
        ("net.ipv4.conf.lo.rp_filter", "2", "0"),
        ("net.ipv4.conf.all.rp_filter", "1", "0"),
    ] {
        serve_until_offloaded(&rig, client);
        rig.lab.server.sysctl(setting, off);
        thread::sleep(UNTIL_NOTICED);
        (0..10).for_each(|_| rig.round_trip(client));
        rig.lab.server.sysctl(setting, on);
        thread::sleep(Duration::from_millis(1500));
        // With the setting restored, new sessions are offloaded again.
        serve_until_offloaded(&rig, fresh_client_v4());
    }
    let totals = rig.stop();
    assert_eq!(totals["datagrams_dropped"], "", "{totals}");
    assert!(in_kernel(&totals) > 30, "{totals}");
}

/// A host on another device forges the balancer's address. The reverse path filter of that device drops its datagrams.
#[test]
fn forged_balancer_on_another_device_is_filtered() {
    let rig = UdpRig::new(&[KERNEL]);
    let forger_host = Host::new();
    rig.lab.server.add_veth("eth1", &forger_host, "eth0");
    rig.lab.server.add_addresses("eth1", &["10.82.0.1/24"]);
    rig.lab.server.sysctl("net.ipv4.conf.eth1.rp_filter", "1");
    forger_host.add_addresses("eth0", &["10.82.0.2/24", "10.81.0.2/32"]);
    // So that the forger's ARP requests come from 10.82.0.2, and the server answers them.
    forger_host.sysctl("net.ipv4.conf.all.arp_announce", "2");
    forger_host.ip("route add 10.81.0.1 via 10.82.0.1 src 10.81.0.2");
    let client = fresh_client_v4();
    // Started after the device was added, so that its eBPF program is on the device, too.
    let mut proxy = Peername::start_listening(
        &rig.lab.server,
        &words(&format!(
            "proxy --protocol=udp --listen=10.81.0.1:8444 --target-v4=127.0.0.1:9000 \
             --trust=private --log-format=json {KERNEL}"
        )),
    );
    let listen = v4([10, 81, 0, 1], 8444);
    converse(&rig.balancer, listen, "each", client, &rig.backend_v4);
    let balancer = rig.balancer.socket().local_addr().expect("an address");
    let forger = DatagramSocket::bind(&forger_host, SocketAddr::new(BALANCER_V4, balancer.port()));
    forger.send(listen, &[&datagram_header_for(client), b"forged"]);
    rig.backend_v4.assert_silent();
    // The control: without the filter it would arrive.
    rig.lab.server.sysctl("net.ipv4.conf.eth1.rp_filter", "0");
    forger.send(listen, &[&datagram_header_for(client), b"forged"]);
    rig.backend_v4.expect_datagram(b"forged", client);
    converse(&rig.balancer, listen, "each", client, &rig.backend_v4);
    assert!(in_kernel(&proxy.stop()) > 100);
}

/// Packets that a host has received by a device.
fn received_by(host: &Host, device: &str) -> u64 {
    let devices = host
        .enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"))
        .expect("the devices' counters");
    let counters = devices
        .lines()
        .find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))
        .expect("the device");
    // The count of packets follows that of bytes.
    let packets = counters.split_whitespace().nth(1).expect("a count");
    packets.parse().expect("a number")
}

/// Longer than the proxy takes to notice that routes or settings have changed.
const UNTIL_NOTICED: Duration = Duration::from_millis(2500);
