//! go-mmproxy with more than two destinations, and more than one port.

use crate::harness::addr::{LISTEN_V4, fresh_client_v4, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::Lab;
use crate::harness::rig::compat::{CompatRig, wait_listening};

#[test]
fn dynamic_destination_works() {
    let (rig, lab) = (CompatRig::new(), Lab::new());
    rig.0.write("subnets", "10.81.0.0/24\n");
    let command = "go-mmproxy -l 10.81.0.1:8443 -4 127.0.0.1:9000 -allowed-subnets subnets -dynamic-destination";
    lab.server
        .ip("rule add from 10.81.0.1 iif lo ipproto tcp sport 9102 table 123");
    let named = Backend::listen(&lab.server, v4([10, 81, 0, 1], 9102));
    let target = Backend::listen(&lab.server, v4([127, 0, 0, 1], 9000));
    let private = Backend::listen(&lab.server, v4([127, 0, 0, 1], 9103));
    let proxy = rig.start(&lab.server, command).wait_listening(&[LISTEN_V4]);
    for (backend, destination) in [
        (&named, v4([10, 81, 0, 1], 9102)),
        (&target, v4([127, 0, 0, 1], 9000)),
    ] {
        let client = fresh_client_v4();
        let _down = Conn::connect_and_send(
            &lab.balancer,
            LISTEN_V4,
            &header_bytes::v1(client, destination),
        );
        assert_eq!(backend.accept().peer_addr(), client);
    }
    assert_refuses_loopback_and_itself(&lab, &private);
    proxy.wait_logged("-dynamic-destination now refuses");
}

/// Without a list every peer is trusted, and a destination on this host is allowed like any other, except on
/// loopback.
#[test]
fn dynamic_destination_without_a_list_works() {
    let (rig, lab) = (CompatRig::new(), Lab::new());
    lab.server
        .ip("rule add from 10.81.0.1 iif lo ipproto tcp sport 9102 table 123");
    let command = "go-mmproxy -l 10.81.0.1:8443 -4 127.0.0.1:9000 -dynamic-destination";
    let named = Backend::listen(&lab.server, v4([10, 81, 0, 1], 9102));
    let private = Backend::listen(&lab.server, v4([127, 0, 0, 1], 9103));
    let _proxy = rig.start(&lab.server, command).wait_listening(&[LISTEN_V4]);
    for _ in 0..3 {
        let client = fresh_client_v4();
        let header = header_bytes::v1(client, v4([10, 81, 0, 1], 9102));
        let _down = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header);
        assert_eq!(named.accept().peer_addr(), client);
    }
    assert_refuses_loopback_and_itself(&lab, &private);
}

/// Asserts that a port on loopback that is not the target, and the proxy itself, are refused as destinations. Both would be
/// reachable.
#[track_caller]
fn assert_refuses_loopback_and_itself(lab: &Lab, private: &Backend) {
    for destination in [v4([127, 0, 0, 1], 9103), LISTEN_V4] {
        Conn::connect_and_send(
            &lab.balancer,
            LISTEN_V4,
            &header_bytes::v1(fresh_client_v4(), destination),
        )
        .wait_closed();
    }
    private.assert_no_connection();
}

/// Both options at once: a connection that a TPROXY rule redirects goes to the destination in its header.
#[test]
fn listen_transparent_works_with_dynamic_destination() {
    let (rig, lab) = (CompatRig::new(), Lab::without_routes());
    let backend = Backend::listen(&lab.server, v4([10, 81, 0, 1], 9102));
    let proxy = rig.start(
        &lab.server,
        "sudo ip rule add from 10.81.0.1 iif lo ipproto tcp sport 9102 table 123
         sudo ip route add local 0.0.0.0/0 dev lo table 123
         iptables -t mangle -A PREROUTING -p tcp --dport 10000:20000 -j TPROXY \
           --tproxy-mark 0x1/0x1 --on-port 25577 --on-ip 127.0.0.1
         ip rule add fwmark 1 lookup 123
         go-mmproxy -l 0.0.0.0:25577 -listen-transparent -dynamic-destination",
    );
    wait_listening(&proxy);
    let (client, to) = (fresh_client_v4(), v4([10, 81, 0, 1], 9102));
    let front = v4([10, 81, 0, 1], 15_432);
    let _down = Conn::connect_and_send(&lab.balancer, front, &header_bytes::v1(client, to));
    assert_eq!(backend.accept().peer_addr(), client);
}

/// The README's port range: every port of it comes to one listener.
#[test]
fn listen_transparent_works() {
    let (rig, lab) = (CompatRig::new(), Lab::without_routes());
    let command =
        "go-mmproxy -l 0.0.0.0:25577 -4 127.0.0.1:25578 -6 [::1]:25578 -listen-transparent";
    let backend = Backend::listen(&lab.server, v4([127, 0, 0, 1], 25578));
    let proxy = rig.start(
        &lab.server,
        &format!(
            "sudo ip rule add from 127.0.0.1/8 iif lo table 123
             sudo ip route add local 0.0.0.0/0 dev lo table 123
             iptables -t mangle -A PREROUTING -p tcp --dport 10000:20000 -j TPROXY \
               --tproxy-mark 0x1/0x1 --on-port 25577 --on-ip 127.0.0.1
             ip rule add fwmark 1 lookup 123
             {command}"
        ),
    );
    wait_listening(&proxy);
    for port in [10_000, 15_432, 20_000] {
        let (client, front) = (fresh_client_v4(), v4([10, 81, 0, 1], port));
        let _down = Conn::connect_and_send(&lab.balancer, front, &header_bytes::v1(client, front));
        assert_eq!(backend.accept().peer_addr(), client);
    }
}
