//! Listeners that are bound to a device (SO_BINDTODEVICE), as HAProxy's are by `interface`.

use std::time::Duration;

use crate::harness::addr::{LISTEN_V4, fresh_client_v4, v4};
use crate::harness::conn::Conn;
use crate::harness::rig::exec::{NOTIFY, ProgramRig, v2};

/// Two listeners have one port at all addresses. Each gets the clients of its device, although the other has waited for longer.
#[test]
fn client_is_handed_to_the_listener_of_its_device() {
    let options = ["--trust=10.81.0.0/24", "--trust=127.0.0.1"];
    let program = [LISTENER_PER_DEVICE, &["lo", "eth0"]].concat();
    let served = ProgramRig::with_mode(NOTIFY, &options, &program);
    served.process.wait_printed("listening");
    let lab = &served.lab;
    for (host, to, device) in [
        (&lab.balancer, LISTEN_V4, "eth0"),
        (&lab.server, v4([127, 0, 0, 1], 8443), "lo"),
    ] {
        let client = fresh_client_v4();
        let slow = Conn::connect_and_send(host, to, &v2(client)[..20]);
        slow.assert_stays_open(Duration::from_millis(50));
        slow.send(&v2(client)[20..]);
        served
            .process
            .wait_printed(&format!("{device} accepted {client}"));
    }
}

/// Has a listener for each device.
const LISTENER_PER_DEVICE: &[&str] = &[
    "/usr/bin/python3",
    "-uc",
    include_str!("listener_per_device.py"),
];
