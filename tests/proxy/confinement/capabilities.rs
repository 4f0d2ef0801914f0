//! The capabilities of a proxy: which ones it needs, and which ones it keeps.

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::backend::Backend;
use crate::harness::lab::{Host, Lab, Process, Scratch, assert_fails};
use crate::harness::peername::{AS_NOBODY, BINARY, Peername, copy_executable};
use crate::harness::rig::proxy::{ProxyRig, connect_client};

/// Without the capability no connection would work; the start fails, and the message has the remedy.
#[test]
fn missing_capability_is_named_at_the_start() {
    let host = Host::new();
    let scratch = Scratch::new();
    let copy = copy_executable(&host, &scratch);
    let args = [
        "proxy",
        "--target=127.0.0.1:443",
        "--trust=any",
        "--listen=127.0.0.1:8443",
    ];
    let without_net_raw: [(&[&str], &str); 3] = [
        (
            &["setpriv", "--bounding-set=-all", "--inh-caps=-all", BINARY],
            "CapabilityBoundingSet=",
        ),
        (&[AS_NOBODY, &[&copy]].concat(), "setcap cap_net_raw"),
        (
            &[AS_NOBODY, &["--no-new-privs", &copy]].concat(),
            "AmbientCapabilities=CAP_NET_RAW",
        ),
    ];
    for (program, remedy) in without_net_raw {
        let output = Peername::run_with_input(&host, program, &args, "");
        assert_fails(&output, 1, &["needs CAP_NET_RAW", remedy]);
    }
}

/// Started as root, every thread keeps CAP_NET_RAW and CAP_NET_BIND_SERVICE, and can't gain others.
#[test]
fn root_keeps_only_two_capabilities() {
    let mut rig = ProxyRig::new(&[]);
    rig.assert_serves(fresh_client_v4());
    assert_only_two_capabilities(&rig.proxy);
    for (thread, set) in rig.proxy.thread_status_fields("CapBnd") {
        assert_eq!(set, NO_CAPABILITY, "CapBnd of {thread}");
    }
}

/// The proxy serves when it is started as user `nobody` with only CAP_NET_RAW and CAP_NET_BIND_SERVICE, as a unit file does.
#[test]
fn two_capabilities_are_enough() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let scratch = Scratch::new();
    let proxy = Peername::proxy_as_nobody(&lab, &scratch, &[]);
    let mut client = fresh_client_v4();
    // Connecting from a privileged port needs CAP_NET_BIND_SERVICE.
    client.set_port(1023);
    let _down = connect_client(&lab, LISTEN_V4, client);
    assert_eq!(backend.accept().peer_addr(), client);
    assert_eq!(proxy.status_field("Uid"), "65534\t65534\t65534\t65534");
    assert_only_two_capabilities(&proxy);
}

#[track_caller]
fn assert_only_two_capabilities(proxy: &Process) {
    for (field, expected) in [
        ("CapEff", NET_RAW_AND_BIND_SERVICE),
        ("CapPrm", NET_RAW_AND_BIND_SERVICE),
        ("CapInh", NO_CAPABILITY),
        ("CapAmb", NO_CAPABILITY),
        ("NoNewPrivs", "1"),
    ] {
        for (thread, value) in proxy.thread_status_fields(field) {
            assert_eq!(value, expected, "{field} of {thread}");
        }
    }
}

/// Bits 13 and 10, as /proc/PID/status shows them.
const NET_RAW_AND_BIND_SERVICE: &str = "0000000000002400";
const NO_CAPABILITY: &str = "0000000000000000";
