//! A transparent listener (IP_TRANSPARENT): TPROXY delivers connections to it whose local address is not the listener's.

use std::time::Duration;

use crate::harness::addr::{fresh_client_v4, v4};
use crate::harness::conn::Conn;
use crate::harness::rig::exec::{MODES, ProgramRig, v2};

/// Connections to another port of this host, and to an address that no host has. Their headers come in two pieces.
#[test]
fn slow_headers_by_tproxy_are_served() {
    for mode in MODES {
        let served = ProgramRig::with_mode(mode, &[], TRANSPARENT);
        served.lab.server.run("sh", &["-ec", RULES]);
        let balancer = &served.lab.balancer;
        balancer.ip("route add 192.0.2.77 via 10.81.0.1");
        for to in [v4([10, 81, 0, 1], 80), v4([192, 0, 2, 77], 80)] {
            let client = fresh_client_v4();
            let slow = Conn::connect_and_send(balancer, to, &v2(client)[..20]);
            slow.assert_stays_open(Duration::from_millis(50));
            slow.send(&v2(client)[20..]);
            served.process.wait_printed(&format!("accepted {client}"));
        }
    }
}

const TRANSPARENT: &[&str] = &[
    "/usr/bin/python3",
    "-uc",
    include_str!("../header_waiter/shared_port.py"),
    "0.0.0.0",
    "transparent",
];
const RULES: &str = "
    iptables -t mangle -A PREROUTING -p tcp --dport 80 -j TPROXY --tproxy-mark 0x1/0x1 --on-port 8443
    ip rule add fwmark 1 lookup 123
    ip route add local 0.0.0.0/0 dev lo table 123";
