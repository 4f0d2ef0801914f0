//! Reply paths of UDP servers: the rules for a server that is not on loopback, and the warnings of `doctor` and `proxy` about a
//! server that is bound to all addresses.

use std::net::SocketAddr;
use std::process::Output;

use crate::harness::addr::{BALANCER_V4, LISTEN_V4, fresh_client_v4, v4};
use crate::harness::datagram::DatagramSocket;
use crate::harness::lab::{Lab, assert_contains, stdout_text};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::udp::datagram_header_for;

/// The rule for a server on another local address names its protocol and port, so UDP needs a rule of its own.
#[test]
fn backend_on_another_local_address_is_served() {
    let lab = Lab::without_routes();
    let target = v4([10, 81, 0, 1], 9000);
    let backend = DatagramSocket::bind(&lab.server, target);
    let balancer = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let args = words(
        "proxy --protocol=udp --listen=10.81.0.1:8443 --target-v4=10.81.0.1:9000 \
         --trust=10.81.0.0/24 --setup-routes",
    );
    let _proxy = Peername::start_listening(&lab.server, &args);
    let rules = lab.server.run("ip", &["rule"]);
    assert_contains(&rules, &["ipproto udp sport 9000"]);
    assert!(!rules.contains("ipproto tcp"), "{rules}");
    let client = fresh_client_v4();
    balancer.round_trip(LISTEN_V4, &datagram_header_for(client), &backend, client);
}

/// The advice is for the protocol of the backend, whichever check gives it.
#[test]
fn doctor_advises_the_rule_for_udp() {
    let lab = Lab::without_routes();
    let report = stdout_text(&doctor(&lab));
    let command = "`peername routes add --target 127.0.0.1:9000 --protocol udp`";
    for check in ["FAIL  routes: ", "FAIL  self-test: "] {
        let mut lines = report.lines().filter(|line| line.starts_with(check));
        assert!(lines.any(|line| line.contains(command)), "{report}");
    }
}

#[test]
fn doctor_reports_a_server_bound_to_all_addresses() {
    let lab = Lab::new();
    for (bound, reported) in [
        ([0, 0, 0, 0], "bind it to 127.0.0.1:9000"),
        ([127, 0, 0, 1], "UDP socket: bound to 127.0.0.1:9000"),
    ] {
        let _server = DatagramSocket::bind(&lab.server, v4(bound, 9000));
        assert_contains(&stdout_text(&doctor(&lab)), &[reported]);
    }
}

/// The proxy's own listener on the same port is not the server.
#[test]
fn doctor_reports_a_server_that_is_missing() {
    let lab = Lab::new();
    let _proxy = start_proxy(&lab, 9000);
    let output = doctor(&lab);
    let report = stdout_text(&output);
    let missing = "FAIL  backend's UDP socket: no server here has UDP port 9000; start it";
    assert_contains(&report, &[missing]);
    assert_eq!(output.status.code(), Some(3), "{report}");
}

#[test]
fn proxy_warns_of_a_server_bound_to_all_addresses() {
    let warning = "the server's UDP socket is bound to all addresses";
    for (bound, is_warned_of) in [([0, 0, 0, 0], true), ([127, 0, 0, 1], false)] {
        let lab = Lab::new();
        let _backend = DatagramSocket::bind(&lab.server, v4(bound, 9000));
        let mut proxy = start_proxy(&lab, 8443);
        proxy.stop();
        let log = proxy.log();
        assert_eq!(log.contains(warning), is_warned_of, "{log}");
    }
}

/// A server that starts beside the proxy is not there at the first probe; the next regular one is a minute later.
#[test]
fn proxy_warns_soon_of_a_server_that_starts_after_it() {
    let lab = Lab::new();
    let proxy = start_proxy(&lab, 8443);
    let _backend = DatagramSocket::bind(&lab.server, v4([0, 0, 0, 0], 9000));
    proxy.wait_logged("the server's UDP socket is bound to all addresses");
}

fn start_proxy(lab: &Lab, port: u16) -> Peername {
    let line = format!(
        "proxy --protocol=udp --listen=10.81.0.1:{port} --target-v4=127.0.0.1:9000 --trust=10.81.0.0/24"
    );
    Peername::start_listening(&lab.server, &words(&line))
}

fn doctor(lab: &Lab) -> Output {
    let args = ["doctor", "--protocol=udp", "--target-v4=127.0.0.1:9000"];
    Peername::run(&lab.server, &args)
}
