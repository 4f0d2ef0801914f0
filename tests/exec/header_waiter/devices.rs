//! Listeners that are bound to a device (SO_BINDTODEVICE), as HAProxy's are by `interface`.

use std::net::SocketAddr;
use std::time::Duration;

use crate::harness::addr::{LISTEN_V4, LISTEN_V6, fresh_client_like, v4};
use crate::harness::conn::Conn;
use crate::harness::lab::Host;
use crate::harness::rig::exec::{MODES, ProgramRig, v2};

/// Two listeners have one port at all addresses. Each gets the clients of its device, although the other has waited for longer.
#[test]
fn client_is_handed_to_the_listener_of_its_device() {
    for mode in MODES {
        let served = start(mode, &[], &["block", "lo", "eth0"]);
        let lab = &served.lab;
        for (host, to, device) in [
            (&lab.balancer, LISTEN_V4, "eth0"),
            (&lab.server, v4([127, 0, 0, 1], 8443), "lo"),
        ] {
            assert_slow_client_reaches(&served, host, to, device);
        }
    }
}

/// The program accepts only if poll(2) reports a connection, so it has to be woken. With lists of clients that is so for every
/// client of the library.
#[test]
fn server_that_is_bound_to_a_device_is_woken() {
    for mode in MODES {
        let served = start(mode, &["--deny-client=192.0.2.1"], &["poll", "eth0"]);
        let balancer = &served.lab.balancer;
        for to in [LISTEN_V4, LISTEN_V6] {
            let client = fresh_client_like(to);
            let _conn = Conn::connect_and_send(balancer, to, &v2(client));
            wait_accepted(&served, "eth0", client);
            assert_slow_client_reaches(&served, balancer, to, "eth0");
        }
    }
}

/// A client reaches the server by the address of another device. A wake-up to that can't reach the server, so the client is
/// refused.
#[test]
fn client_at_the_address_of_another_device_is_refused() {
    for mode in MODES {
        let served = start(mode, &["-v"], &["poll", "eth0"]);
        served.lab.server.ip("address add 10.82.0.1/32 dev lo");
        let balancer = &served.lab.balancer;
        balancer.ip("route add 10.82.0.1/32 via 10.81.0.1");
        let at_other = v4([10, 82, 0, 1], 8443);
        let client = fresh_client_like(at_other);
        let slow = connect_with_half_a_header(balancer, at_other, client);
        slow.send(&v2(client)[20..]);
        slow.wait_reset();
        served.process.wait_logged("the device's own addresses");
        assert_slow_client_reaches(&served, balancer, LISTEN_V4, "eth0");
    }
}

fn start(mode: &str, options: &[&str], program_args: &[&str]) -> ProgramRig {
    let options = [&["--trust=private"], options].concat();
    let program = [LISTENER_PER_DEVICE, program_args].concat();
    let served = ProgramRig::with_mode(mode, &options, &program);
    served.process.wait_printed("listening");
    served
}

#[track_caller]
fn assert_slow_client_reaches(served: &ProgramRig, host: &Host, to: SocketAddr, device: &str) {
    let client = fresh_client_like(to);
    let slow = connect_with_half_a_header(host, to, client);
    slow.send(&v2(client)[20..]);
    wait_accepted(served, device, client);
}

#[track_caller]
fn wait_accepted(served: &ProgramRig, device: &str, client: SocketAddr) {
    let (ip, port) = (client.ip(), client.port());
    served
        .process
        .wait_printed(&format!("{device} accepted {ip} {port}"));
}

fn connect_with_half_a_header(host: &Host, to: SocketAddr, client: SocketAddr) -> Conn {
    let conn = Conn::connect_and_send(host, to, &v2(client)[..20]);
    conn.assert_stays_open(Duration::from_millis(50));
    conn
}

/// Has a listener for each device and family.
const LISTENER_PER_DEVICE: &[&str] = &[
    "/usr/bin/python3",
    "-uc",
    include_str!("listener_per_device.py"),
];
